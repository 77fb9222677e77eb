"""Leaves that are read where training keeps them, and copied only when an optimizer is about to change them.

A pipeline borrows a leaf's memory piece by piece, front to back, and ends each loan soon. To settle a leaf is to copy
what was not borrowed yet, and to wait for loans; what is on loan unread is copied too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from ctypes import string_at
from dataclasses import dataclass
from enum import Enum, auto
from threading import Condition

import numpy as np
from torch import Tensor

from ckptstore.errors import StateError
from ckptstore.locks import Lock
from ckptstore.state.arrays import as_tracked_like, plain_bytes
from ckptstore.state.kept import Bytes, Kept, KeptBuffers
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.tree import Flat

_NOTHING = np.empty(0, np.uint8)
_SAMPLED = 64
_NONE: AbstractSet[Loan] = frozenset()


class _State(Enum):
    LIVE = auto()
    BEING_COPIED = auto()
    SETTLED = auto()


class Lender:
    """The memory of one tensor while a commit reads it; `shown` are those that show it, and may count changes apart.

    Of many, Python's collector would look at all again and again: each is made of few objects that it looks at.
    """

    def __init__(self, path: str, tensor: Tensor, shown: Sequence[Tensor], buffers: KeptBuffers) -> None:
        self._tensor = tensor.detach()  # keeps this memory, whatever becomes of who owns it
        self._shown = self._tensor, *(other.detach() for other in shown if other is not tensor)
        self._address, self._seen = 0, _NOTHING
        self._path, self._buffers, self._versions = path, buffers, self._read_versions()
        self._sample = self._read_sample()
        self.marks = tensor.untyped_storage().data_ptr(), *map(id, shown)
        self._lock = Lock()  # left in C, where no signal's handler interrupts, as it may a Condition
        self._turn: Condition | None = None
        self._state = _State.LIVE
        self._borrowed_to = self._loans = 0
        self._at_rest = self._moved = _NONE
        self._spoilt = False

    def borrow(self, start: int, stop: int) -> tuple[memoryview, Loan | None]:
        """These bytes; with a loan when they are live, to be ended once nobody looks at them."""
        with self._lock:
            self._wait_until(lambda: self._state is not _State.BEING_COPIED)
            if self._state is _State.SETTLED:
                return self._kept().content[start:stop].data, None
            self._borrowed_to = stop
            self._loans += 1
            return self._live()[start:stop].data, Loan(self, start, stop)

    def prepare(self) -> None:
        """Fault in the memory that settling may need."""
        with self._lock:
            if self._state is _State.LIVE:
                self._kept().fault()

    def claim(self) -> list[tuple[Bytes, Bytes]]:
        """What is to be copied and where to; until `settle`, nothing more is lent."""
        with self._lock:
            if self._state is not _State.LIVE:
                return []
            self._state = _State.BEING_COPIED
            rest = slice(self._borrowed_to, None)
            live = self._live()
            return [(live[rest], self._kept().content[rest])] if self._borrowed_to < len(live) else []

    def settle(self, *, well: bool) -> None:
        """After `claim`: the copy was made, well or not, and is lent from here on."""
        with self._lock:
            if self._state is not _State.SETTLED:
                self._spoilt = not well or self._has_changed()
                self._state = _State.SETTLED
                self._tell()

    def wait(self) -> None:
        """After `settle`: once no loan is left, but for those at rest, which get a copy, the tensor may change."""
        with self._lock:
            self._wait_until(lambda: self._loans <= len(self._at_rest))
            for loan in self._at_rest:
                self._copy(loan)
            self._spoilt = self._spoilt or (bool(self._at_rest) and self._has_changed())
            self._moved |= self._at_rest
            self._at_rest = _NONE
            self._loans = 0

    def may_change(self) -> bool:
        """Whether it is settled and no loan is left; looked at in this order, since then there are no new ones.

        Once it may, it may for good.
        """
        return self._state is _State.SETTLED and not self._loans

    def abandon(self) -> None:
        """Nobody borrows any more."""
        with self._lock:
            self._state = _State.SETTLED
            self._loans = 0
            self._at_rest = _NONE
            self._tell()

    def check(self) -> None:
        """Raises StateError when somebody else than an optimizer changed the tensor before all of it was read."""
        with self._lock:
            if self._spoilt if self._state is _State.SETTLED else self._has_changed():
                raise self.spoilt()

    def spoilt(self) -> StateError:
        """What `check` raises, for who noticed it by the bytes."""
        return StateError(
            f"{self._path!r} was changed, and not by its optimizer's step, before it was stored: "
            "call the handle's wait_staged() before that, or commit with just_in_time=False, "
            "which a CheckpointManager takes too"
        )

    def copied(self) -> Kept:
        """After `settle`: the memory that has the copy. Raises StateError as `check` does."""
        self.check()
        return self._kept()

    def keep(self, loan: Loan) -> memoryview:
        """See `Loan.keep`."""
        with self._lock:
            self._at_rest -= {loan}
            moved = loan in self._moved
        if not moved:
            self._copy(loan)
        return self._kept().content[loan.start : loan.stop].data

    def rest(self, loan: Loan) -> None:
        """See `Loan.rest`."""
        with self._lock:
            self._at_rest |= {loan}
            self._tell()

    def end(self, loan: Loan) -> None:
        """See `Loan.end`."""
        with self._lock:
            if loan not in self._moved:
                self._at_rest -= {loan}
                self._loans -= 1
                self._tell()

    def _wait_until(self, ready: Callable[[], bool]) -> None:
        """With the lock, which others get meanwhile."""
        if not ready():
            self._turn = self._turn or Condition(self._lock)
            self._turn.wait_for(ready)

    def _tell(self) -> None:
        """With the lock: whoever waits shall look."""
        if self._turn is not None:
            self._turn.notify_all()

    def _copy(self, loan: Loan) -> None:
        part = slice(loan.start, loan.stop)
        np.copyto(self._kept().content[part], self._live()[part])

    def _live(self) -> Bytes:
        """The memory, also after torch moved it, to share it with another process for instance."""
        if self._tensor.data_ptr() != self._address:
            plain = plain_bytes(self._tensor)
            assert plain is not None
            self._seen = np.frombuffer(plain, np.uint8)  # first: another thread may look meanwhile
            self._address = self._tensor.data_ptr()
        return self._seen

    def _has_changed(self) -> bool:
        """By what torch counts, or by some of the bytes: of most writes that it does not count they tell."""
        return self._read_versions() != self._versions or self._read_sample() != self._sample

    def _read_sample(self) -> bytes:
        """The first elements, and some in the middle; without objects for them that the collector would look at."""
        begin, nbytes = self._tensor.data_ptr(), self._tensor.nbytes
        return string_at(begin, min(_SAMPLED, nbytes)) + string_at(begin + nbytes // 2, min(_SAMPLED, nbytes // 2))

    def _read_versions(self) -> tuple[int, ...]:
        return tuple([tensor._version for tensor in self._shown])  # noqa: SLF001 - has no public name

    def _kept(self) -> Kept:
        held = self._buffers.take(self._path, self._tensor.nbytes)
        held.fingerprint = None
        return held


@dataclass(frozen=True, slots=True)
class Loan:
    """Live bytes of a tensor, as long as the loan lasts."""

    lender: Lender
    start: int
    stop: int

    def keep(self) -> memoryview:
        """A copy that lasts until the next commit."""
        return self.lender.keep(self)

    def rest(self) -> None:
        """Let the tensor change once these bytes are copied; nobody looks at them until `keep`."""
        self.lender.rest(self)

    def end(self) -> None:
        """Let the tensor change; the live bytes are not looked at any more."""
        self.lender.end(self)

    def spoilt(self) -> StateError:
        """What to raise when they changed before `keep`, unseen by torch."""
        return self.lender.spoilt()


class LiveLeaf(TensorLeaf, frozen=True, eq=False):
    """A leaf whose bytes are borrowed."""

    lender: Lender


def live_leaf(path: str, leaf: TensorLeaf, shown: Sequence[Tensor], buffers: KeptBuffers) -> LiveLeaf:
    """A tensor that is plain memory, to be borrowed; `shown`: see `Lender`."""
    assert isinstance(leaf.tensor, Tensor)
    same = as_tracked_like(leaf.tensor.detach(), leaf.tensor)
    return LiveLeaf(same, Lender(path, leaf.tensor, shown, buffers))


def live_leaves(flat: Flat) -> list[LiveLeaf]:
    """Those of a state."""
    return [leaf for leaf in flat.leaves.values() if isinstance(leaf, LiveLeaf)]
