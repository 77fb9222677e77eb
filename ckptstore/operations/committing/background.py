"""Commits that go on while training does, and those that wait for them."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar, cast, get_args

from ckptstore.catalog.records import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance, Stopping
from ckptstore.compiling import uncompiled
from ckptstore.errands import uninterrupted
from ckptstore.errors import CommitInFlight, InvalidArgument
from ckptstore.locks import Lock
from ckptstore.operations.committing.handles import CommitHandle, refuse_at_exit
from ckptstore.operations.committing.preloading import import_committing
from ckptstore.operations.ranks.channels import Channels
from ckptstore.progress import ProgressCallback, meter

if TYPE_CHECKING:  # they import torch, for which nobody waits who only closes a store
    from ckptstore.operations.history import Draft
    from ckptstore.operations.ranks.groups import Group
    from ckptstore.operations.ranks.wishes import Wish
    from ckptstore.state.staging import Staged, Stager
    from ckptstore.state.tree import Flat

T = TypeVar("T")
WhenBusy = Literal["wait", "raise"]
"""What a background commit does while another one is in flight."""

_BUSY = "another background commit is in flight: call its handle's result(), or commit with when_busy='wait'"
_FAST_DIGEST = "xxh3_128"
_ALL: weakref.WeakSet[Background] = weakref.WeakSet()
_OF_PARENTS: list[object] = []
"""What a forked process has of its parent's commits. Memory and events of a device may only be freed over there."""


class _Status(NamedTuple):
    """Of a rank, or of any: whether a commit is in flight, and whether there is no channel to the others."""

    busy: bool
    apart: bool


class Background:
    """The commits of one store; those in the background one at a time."""

    def __init__(self, chunks: ChunkStore) -> None:
        self._chunks = chunks
        self._lock, self._guard = Lock(), Lock()
        self._preparing: int | None = None
        self._flight: CommitHandle | None = None
        self._staged: Staged | None = None
        self._stager: Stager | None = None
        self._channels = Channels()
        _ALL.add(self)

    def in_child(self) -> None:
        """In a process that was forked off, where no thread goes on that could be in the midst of anything."""
        if self._staged is not None:
            self._staged.just_in_time.forget()
        _OF_PARENTS.append((self._staged, self._stager))
        self._lock, self._guard = Lock(), Lock()
        self._preparing = self._flight = self._staged = self._stager = None

    @uncompiled
    def commit(
        self, wish: Wish, group: Group | None, progress: ProgressCallback | None, *, alone: bool = False
    ) -> CommitRecord:
        """Commit a state at once, after the one in flight, together with all ranks of the group, or `alone`."""
        from ckptstore.operations.committing.commit import commit
        from ckptstore.operations.ranks.groups import seat
        from ckptstore.operations.ranks.ranks import Ranks
        from ckptstore.operations.ranks.together import commit_together

        def landed() -> Flat:
            self.land()
            return self._own_stager().look(wish.flatten())

        refuse_at_exit()
        ranks, measure = Ranks(0, 1) if alone else Ranks(*seat(group), group), partial(meter, progress, "commit")
        if ranks.count > 1:
            return commit_together(self._chunks, ranks, replace(wish, flatten=landed), measure)
        self.land()  # which may be the parent
        draft = wish.draft()
        flat = self._own_stager().look(wish.flatten())
        stopping = Stopping()
        if flat.sharded:
            known = replace(wish, flatten=lambda: flat, draft=lambda: draft)
            work = partial(commit_together, self._chunks, ranks, known, lambda total: stopping.watched(measure(total)))
            return uninterrupted(work, stopping.stop)
        work = partial(commit, self._chunks, flat, draft, stopping.watched(measure(flat.nbytes)))
        return uninterrupted(work, stopping.stop)

    @uncompiled
    def launch(self, wish: Wish, group: Group | None, *, just_in_time: bool, when_busy: WhenBusy) -> CommitHandle:
        """Stage a state and commit it in a thread: on all ranks of the group, or on none.

        Raises CommitInFlight when that was asked for and any rank has one, what kept this rank from it, also the error
        of its last commit, or RankFailed for what kept another one.
        """
        from ckptstore.operations.ranks.groups import group_or_default, seat
        from ckptstore.operations.ranks.ranks import Ranks

        refuse_at_exit()
        ranks = Ranks(*seat(group), group)
        key = group_or_default(group) if ranks.count > 1 else None
        ready: list[tuple[Staged, Wish]] = []

        def launch(*, alone: bool) -> CommitHandle:
            def prepare() -> _Status:
                if not self._may_begin(when_busy, alone=alone):
                    return _Status(busy=True, apart=False)
                ready.append(self._prepare(wish, just_in_time=just_in_time, drafts=ranks.is_coordinator))
                return _Status(busy=False, apart=key is not None and not self._channels.has(key))

            try:
                status = ranks.agree(prepare, _status_of_any)
                if status.busy:
                    raise CommitInFlight(_BUSY)
                if status.apart:
                    self._channels.make(group)
                return self._start(*ready[0], key)
            finally:
                begun = self._flight is not None and not self._flight.done()
                if alone and not begun and self._staged is not None:
                    staged, self._staged = self._staged, None
                    staged.close()

        return self._alone(launch, patient=when_busy == "wait")

    def settle(self) -> None:
        """Return once anybody may change the state of the commit in flight."""
        flight = self._flight
        if flight is not None:
            flight.wait_staged()

    def land(self) -> None:
        """Wait for the commit in flight; raise its error unless somebody saw it.

        When this is interrupted, the commit is in flight as before.
        """
        flight = self._flight
        if flight is not None:
            try:
                flight.surface()
            finally:
                self._forget(flight)

    def _forget(self, flight: CommitHandle) -> None:
        """Once it is done, unless another one is in flight already."""
        with self._guard:
            if flight.done() and self._flight is flight:
                self._flight = None

    def close(self) -> None:
        """`land`, and give back the kept memory, the channels, and what the chunks keep open."""
        self._alone(self._close, patient=True)

    def _close(self, *, alone: bool) -> None:
        if not alone:
            raise self._within()
        try:
            self.land()
        finally:
            self._channels.close()
            stager, self._stager = self._stager, None  # first: when this is interrupted, it may be half closed
            if stager is not None:
                stager.close()
            self._chunks.close()

    def _may_begin(self, when_busy: WhenBusy, *, alone: bool) -> bool:
        """Whether no commit is in flight; where nobody wants to wait for that, it may be.

        Raises the error of the last commit.
        """
        if when_busy not in get_args(WhenBusy):
            raise InvalidArgument(f"when_busy={when_busy!r}: choose one of {', '.join(get_args(WhenBusy))}")
        if not alone and self._is_within():
            raise self._within()
        if not alone or (when_busy == "raise" and self._flight is not None and not self._flight.done()):
            return False
        self.land()
        self._staged = None
        return True

    def _alone(self, work: Callable[..., T], *, patient: bool) -> T:
        """What `work` gives while no other thread begins a commit or closes.

        It gets `alone=False` where it is not: another thread does, and this one is not patient, or this one does so.
        Nothing is called before it is known who has the lock: so no signal's handler comes between.
        """
        if self._is_within() or (not patient and self._preparing is not None):
            return work(alone=False)
        this = threading.get_ident()
        with self._lock:
            self._preparing = this
            try:
                return work(alone=True)
            finally:
                self._preparing = None

    def _is_within(self) -> bool:
        return self._preparing == threading.get_ident()

    @staticmethod
    def _within() -> CommitInFlight:
        where = "this thread is within commit_async, or close, and a signal's handler or a state_dict() makes this call"
        return CommitInFlight(f"{where}: wait until that has returned")

    def _prepare(self, wish: Wish, *, just_in_time: bool, drafts: bool) -> tuple[Staged, Wish]:
        """The state staged, and how to commit it."""
        draft = wish.draft() if drafts else None
        staged = self._staged = self._own_stager().stage(wish.flatten(), just_in_time=just_in_time)
        return staged, replace(wish, flatten=staged.settled, draft=lambda: cast("Draft", draft))

    def _start(self, staged: Staged, wish: Wish, group: Group | None) -> CommitHandle:
        handle = CommitHandle(staged.flat.nbytes, staged.settle)
        try:
            handle.run(partial(self._commit, staged, wish, group, handle.advance))
        finally:
            self._flight = handle
        return handle

    def _commit(self, staged: Staged, wish: Wish, group: Group | None, advance: Advance) -> CommitRecord:
        try:
            import_committing()
            from ckptstore.operations.committing.commit import commit

            if group is not None or staged.flat.sharded:
                return self._commit_together(wish, group, advance)
            staged.prepare()
            return commit(self._chunks.in_background(), staged.flat, wish.draft(), advance)
        except BaseException as error:
            error.add_note(f"this is of the commit in the background of step {wish.step} of run {wish.run!r}")
            raise
        finally:
            staged.close()  # also for whoever waits until it is settled
            self._staged = None
            self._own_stager().remember()

    def _commit_together(self, wish: Wish, group: Group | None, advance: Advance) -> CommitRecord:
        try:
            from ckptstore.operations.ranks.together import commit_together

            chunks = self._chunks.in_background()
            return commit_together(chunks, self._channels.ranks(group), wish, lambda _: advance)
        except BaseException as error:
            self._channels.leave(group, error)
            raise

    def _own_stager(self) -> Stager:
        from ckptstore.state.staging import Stager

        if self._stager is None:
            digest = self._chunks.digest
            self._stager = Stager(digest.compute if digest.name == _FAST_DIGEST else None)
        return self._stager


def _forget_in_child() -> None:
    for background in _ALL:
        background.in_child()


os.register_at_fork(after_in_child=_forget_in_child)


def _status_of_any(statuses: list[_Status]) -> list[_Status]:
    return [_Status(any(one.busy for one in statuses), any(one.apart for one in statuses))] * len(statuses)
