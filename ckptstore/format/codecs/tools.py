"""What coding a chunk takes beside the chunk: memory and zstd's contexts, kept for the next one.

Fresh memory costs more than the arithmetic in it, since the kernel gives it out page by page. As many sets are kept as
were in use at once, of a few MiB each.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import count

import numpy as np

from ckptstore.format.codecs.entropy import Coders, PlaneCoder, PlaneDecoder
from ckptstore.format.codecs.loops import Array, Loops
from ckptstore.format.codecs.making import MAKING, Get
from ckptstore.format.codecs.pool import Pool
from ckptstore.format.codecs.words import BLOCK_WORDS, Words, word_type

_KEPT_AFTER = 16
"""Uses. Before, loading loops that were compiled once would take longer than it saves: 40 ms, and 2 a loop."""
_COMPILED_AFTER = 2048
"""Uses, some GiB. Before, compiling would take longer than it saves: seconds for each of the large loops."""


class Tools:
    """For one thread at a time."""

    def __init__(self) -> None:
        self.coders, self.decoder = fastest_coders(), PlaneDecoder()
        self.loops = Loops(self.array, self.coders)
        self._make: Callable[[Array, Coders, Get], Loops] = Loops
        self._arrays: dict[tuple[int, str], Words] = {}

    def array(self, width: int, count: int, use: str) -> Words:
        """Memory for `count` words, at most a block of them; the same one for the same width and use."""
        if (width, use) not in self._arrays:
            self._arrays[width, use] = np.empty(BLOCK_WORDS, word_type(width))
        return self._arrays[width, use][:count]

    def speed_up(self, *, compiling: bool) -> None:
        """Use the fastest loops that there are, or that can be compiled."""
        make = fastest_loops(compiling=compiling)
        if make is not self._make:
            self.loops, self._make = make(self.array, self.coders, MAKING.get), make


def fastest_coders() -> Coders:
    """Those of zstd's own functions, where cffi gives them; else one for both, with a warning when it should."""
    try:
        from ckptstore.format.codecs.binding import Encoder

        return Coders(Encoder(searching=False), Encoder(searching=True))
    except ImportError:
        pass
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the other binding does the same
        warnings.warn(f"zstandard's binding for cffi does not work, codecs go on without it: {error!r}", stacklevel=2)
    coder = PlaneCoder()
    return Coders(coder, coder)


_POOL = Pool(Tools)
_USES = count()


@cache
def fastest_loops(*, compiling: bool) -> Callable[[Array, Coders, Get], Loops]:
    """Those that numba compiles now, or did in some process; with a warning when it is there and cannot be used."""
    try:
        from ckptstore.format.codecs.compiled import CompiledLoops
    except ImportError as error:
        if compiling and "cffi" in (error.name or ""):
            warnings.warn(
                'numba needs cffi here, codecs go on without both: pip install "ckptstore[jit]"', stacklevel=2
            )
        return Loops
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, the others do the same
        if compiling:
            warnings.warn(f"what numba compiles does not work, codecs go on without it: {error!r}", stacklevel=2)
        return Loops
    return partial(CompiledLoops, compiling=compiling)


@contextmanager
def borrowed() -> Iterator[Tools]:
    """A set that nobody else uses meanwhile."""
    with _POOL.borrowed() as taken:
        uses = next(_USES)
        if uses >= _KEPT_AFTER:
            taken.speed_up(compiling=uses >= _COMPILED_AFTER)
        yield taken
