"""Live leaves are settled before the optimizers that own them step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from threading import get_ident

from torch.optim import Optimizer

from ckptstore.cached import cached_property
from ckptstore.errands import uninterrupted
from ckptstore.errors import StateError
from ckptstore.locks import Lock
from ckptstore.state.kept import KeptBuffers
from ckptstore.state.lending import Lender
from ckptstore.state.optimizers import marks
from ckptstore.state.steps import unwatch, watch


class JustInTime:
    """Settles the live leaves of one commit before the optimizers that own them step, or others that share them.

    Another thread does so, and whoever steps waits for it: when a signal's handler, which interrupts the main thread,
    raises or saves meanwhile, nothing stays half settled, and nothing waits for what cannot go on.
    """

    def __init__(self, owners: Mapping[Optimizer, Sequence[Lender]], buffers: KeptBuffers) -> None:
        self._buffers = buffers
        self._lenders = {id(optimizer): list(lenders) for optimizer, lenders in owners.items()}
        self._all = list(dict.fromkeys(chain.from_iterable(self._lenders.values())))
        self._first_open = 0
        self._settling = Lock()
        self._settled_by: int | None = None
        watch(self)

    def prepare(self) -> None:
        """Fault in the memory that copies may need: that of the last leaves first, which are mostly read last."""
        for lender in reversed(self._all):
            lender.prepare()

    def settle_all(self) -> None:
        """Return once anybody may change the tensors."""
        self._settled(self._all)

    def close(self) -> None:
        """The commit is over; to be called by its thread."""
        for lender in self._all:
            lender.abandon()
        self.forget()
        unwatch(self)

    def forget(self) -> None:
        """There is no commit any more that could read anything."""
        self._lenders, self._all, self._by_mark = {}, [], {}

    def before_step(self, optimizer: Optimizer) -> None:
        """Return once this optimizer may change what it owns, also what it was given or made over since."""
        self._settled(self._lenders.get(id(optimizer), ()))
        if self._any_open():
            by_mark = self._by_mark
            self._settled([lender for mark in marks(optimizer) for lender in by_mark.get(mark, ())])

    @cached_property
    def _by_mark(self) -> dict[int, list[Lender]]:
        """Which may have such a mark; few commits meet optimizers that are not in their app state."""
        found: dict[int, list[Lender]] = {}
        for lender in self._all:
            for mark in lender.marks:
                found.setdefault(mark, []).append(lender)
        return found

    def _any_open(self) -> bool:
        """Whether any may not change yet. Looks once at each of those that may, which they do for good.

        Several threads may look at once: whichever writes last, all before `_first_open` may change.
        """
        lenders, at = self._all, self._first_open
        while at < len(lenders) and lenders[at].may_change():
            at += 1
        self._first_open = at
        return at < len(lenders)

    def _settled(self, lenders: Iterable[Lender]) -> None:
        waited_for = [lender for lender in lenders if not lender.may_change()]
        if waited_for:
            uninterrupted(lambda: self._settle(waited_for))

    def _settle(self, lenders: Sequence[Lender]) -> None:
        this = get_ident()
        if self._settled_by == this:
            problem = "a signal's handler interrupted the copying of what a commit still reads"
            raise StateError(f"{problem}: change it when the handler has returned")
        with self._settling:
            self._settled_by, well = this, False
            try:
                self._buffers.copy([pair for lender in lenders for pair in lender.claim()])
                well = True
            finally:
                for lender in lenders:
                    lender.settle(well=well)
                self._settled_by = None
            for lender in lenders:  # not before all are settled: who has a loan of one may wait to borrow the next
                lender.wait()
