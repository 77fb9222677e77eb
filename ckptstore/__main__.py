"""`python -m ckptstore`."""

from __future__ import annotations

from ckptstore.cli import main

main()
