"""What coding a chunk takes beside the chunk: memory and zstd's contexts, kept for the next one.

Fresh memory costs more than the arithmetic in it, since the kernel gives it out page by page. As many sets are kept as
were in use at once, of a few MiB each.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count

import numpy as np

from ckptstore.format.codecs.entropy import PlaneCoder, PlaneDecoder
from ckptstore.format.codecs.loops import Loops
from ckptstore.format.codecs.making import MAKING
from ckptstore.format.codecs.pool import Pool
from ckptstore.format.codecs.words import BLOCK_WORDS, Words, word_type

_PATIENCE = 2048
"""Before as many uses, some GiB, compiling would take longer than it saves: up to 8 s, and 2 ms a use."""


class Tools:
    """For one thread at a time."""

    def __init__(self) -> None:
        self.coder, self.decoder = PlaneCoder(), PlaneDecoder()
        self.loops = Loops(self.array)
        self._arrays: dict[tuple[int, str], Words] = {}

    def array(self, width: int, count: int, use: str) -> Words:
        """Memory for `count` words, at most a block of them; the same one for the same width and use."""
        if (width, use) not in self._arrays:
            self._arrays[width, use] = np.empty(BLOCK_WORDS, word_type(width))
        return self._arrays[width, use][:count]


_POOL = Pool(Tools)
_USES = count()


@cache
def fastest_loops() -> type[Loops]:
    """Those that numba compiles, if it is installed; with a warning when it does not work."""
    try:
        from ckptstore.format.codecs.compiled import CompiledLoops
    except ImportError as error:
        if "cffi" in (error.name or ""):
            warnings.warn(
                'numba needs cffi here, codecs go on without both: pip install "ckptstore[jit]"', stacklevel=2
            )
        return Loops
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the others do the same
        warnings.warn(f"numba does not work, codecs go on without it: {error!r}", stacklevel=2)
        return Loops
    return CompiledLoops


@contextmanager
def borrowed() -> Iterator[Tools]:
    """A set that nobody else uses meanwhile."""
    with _POOL.borrowed() as taken:
        if next(_USES) >= _PATIENCE and type(taken.loops) is not fastest_loops():
            taken.loops = fastest_loops()(taken.array, MAKING.get)
        yield taken
