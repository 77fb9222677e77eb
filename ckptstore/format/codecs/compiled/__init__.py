"""The innermost loops of codecs, compiled by numba. Importing this takes numba, and zstandard's binding by cffi."""

from __future__ import annotations

from ckptstore.format.codecs.compiled.loops import CompiledLoops

__all__ = ["CompiledLoops"]
