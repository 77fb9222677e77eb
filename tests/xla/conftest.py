"""torch_xla on the CPU, with four devices in one process; see `README.md`."""

from __future__ import annotations

import os
from importlib.util import find_spec

import pytest
import torch.distributed as dist

if find_spec("torch_xla") is None:
    collect_ignore_glob = ["*"]
else:
    os.environ |= {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "4"}


@pytest.fixture(scope="session")
def spmd():
    """One program for all devices."""
    import torch_xla.distributed.xla_backend
    import torch_xla.runtime

    torch_xla.runtime.use_spmd()
    dist.init_process_group("gloo", init_method="xla://")
    yield
    dist.destroy_process_group()
