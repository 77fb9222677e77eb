"""What is compiled, as functions that numba knows; each makes the loop that a `Call` names, for given arguments.

Importing this takes numba.
"""

from __future__ import annotations

from collections.abc import Callable

from ckptstore.format.codecs.compiled.source.adam import second, weight
from ckptstore.format.codecs.compiled.source.compiling import Helper, llvm_of
from ckptstore.format.codecs.compiled.source.cutting import cutting, halving
from ckptstore.format.codecs.compiled.source.packing import packing
from ckptstore.format.codecs.compiled.source.squeezing import squeezing
from ckptstore.format.codecs.compiled.source.unpacking import unpacking
from ckptstore.format.codecs.compiled.source.weighing import weighing

MAKERS: dict[str, Callable[..., Helper]] = {
    make.__name__: make for make in (cutting, halving, packing, second, squeezing, unpacking, weighing, weight)
}

__all__ = ["MAKERS", "llvm_of"]
