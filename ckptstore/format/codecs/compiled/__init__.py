"""The innermost loops of codecs, compiled by numba. Importing this takes llvmlite, which runs what was compiled, and
zstandard's binding by cffi; numba is imported when there is something to compile.
"""

from __future__ import annotations

from ckptstore.format.codecs.compiled.loops import CompiledLoops

__all__ = ["CompiledLoops"]
