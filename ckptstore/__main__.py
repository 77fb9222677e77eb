"""The command `ckptstore`, also as `python -m ckptstore`."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def main() -> None:
    """The entry point. Ctrl-C ends in one line also while imports take their time."""
    try:
        from ckptstore.cli import main as run
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)  # noqa: T201 - click may be what is not there yet
        sys.exit(_INTERRUPTED)
    run()


if __name__ == "__main__":
    main()
