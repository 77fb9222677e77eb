#!/bin/sh
# Makes an environment for these tests: tests/xla/setup.sh FOLDER
set -eu
cd "$(dirname "$0")/../.."
python3.11 -m venv "$1"
install() { "$folder/bin/python" -m pip --disable-pip-version-check install "$@"; }
folder=$1

# Not all that torch wants: its libraries do not load without CUDA's, but nothing here needs Triton.
install --no-deps torch==2.9.0 torch_xla==2.9.0
install --no-deps $("$folder/bin/python" -c '
from importlib.metadata import requires
print(*(need.partition(";")[0] for need in requires("torch") if need.startswith("nvidia-")))')
install filelock jinja2 networkx sympy typing-extensions absl-py numpy pyyaml requests
install --no-deps --editable .
install $("$folder/bin/python" -c '
from importlib.metadata import requires
known = [need.partition(";") for need in requires("ckptstore")]
print(*(need for need, _, marker in known if not marker and not need.startswith("torch>")))') \
    hypothesis pytest pytest-timeout pytest-xdist
