"""The ranks of a job that do one thing together, in a process group, or a single process without one.

What fails on one rank fails on all: a rank that cannot go on still takes part in the next exchange, and says so. All
ranks call the same methods in the same order.
"""

from __future__ import annotations

import logging
import pickle
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from ckptstore.errands import uninterrupted
from ckptstore.errors import (
    CkptStoreError,
    FormatError,
    InterpreterExiting,
    InvalidArgument,
    NotFound,
    RankFailed,
    StateError,
    StepExists,
)
from ckptstore.format import frames
from ckptstore.operations.ranks.groups import device_of, rank_failures

T = TypeVar("T")
A = TypeVar("A")

_LOG = logging.getLogger("ckptstore")
_COORDINATOR = 0
_LATE_SECONDS = 20.0
_LATE = (
    "rank %s of %s has waited %.0f s for the others: all must make this call, without an `if rank == 0` before it; "
    "what one commits alone, as where a framework calls on rank 0 only, needs a group of its own: process_group=torch."
    'distributed.new_group([torch.distributed.get_rank()], backend="gloo", use_local_synchronization=True)'
)
_MET: set[frozenset[int]] = set()
_PASSING = (CkptStoreError, OSError, MemoryError, KeyboardInterrupt)
_MISTAKES = (InvalidArgument, NotFound, StepExists, StateError, FormatError, InterpreterExiting)
"""Of these, what fails again when the same is committed again."""


class _Failure(NamedTuple):
    """What kept a rank from it, as it is reported to others, and whether the same may be committed again."""

    reason: str
    passing: bool


class Ranks:
    """This process among `count` ranks, of which the first one is the coordinator.

    Args:
        rank: of this process, from 0.
        count: of the ranks; for one, no group is needed.
        group: the process group that they form; by default the default one.

    Attributes:
        members: their numbers in the default group; none for a single process.
    """

    def __init__(self, rank: int, count: int, group: dist.ProcessGroup | None = None) -> None:
        self.rank, self.count = rank, count
        self._group, self._left = group, False
        self._device = device_of(group) if count > 1 else torch.device("cpu")
        self._failure: BaseException | None = None
        self.members = frozenset(dist.get_process_group_ranks(group)) if count > 1 else frozenset[int]()

    @property
    def is_coordinator(self) -> bool:
        """Whether this is the rank that answers."""
        return self.rank == _COORDINATOR

    def agree(self, prepare: Callable[[], T], answer: Callable[[list[T]], Sequence[A]]) -> A:
        """What the coordinator answers this rank; `prepare` makes its message, `answer` is called there only, with all.

        Raises what `prepare` or `answer` raised on this rank, and RankFailed on all others.
        """
        message = self._attempt(prepare)
        failure, self._failure = self._failure, None
        everything = self._gather((None if failure is None else _failure(failure), message))
        answers: list[tuple[str | None, A | None]] = []
        if self.is_coordinator:
            answers, failed = self._answers(everything, answer)
            failure = failure or failed
        given: A
        reason, given = self._scatter(answers)
        if failure is not None:
            raise failure
        if reason is not None:
            raise RankFailed(reason)
        return given

    def exchange(
        self, outgoing: Callable[[], Mapping[int, torch.Tensor]], sizes: Mapping[int, int], expected: Mapping[int, int]
    ) -> dict[int, torch.Tensor]:
        """Bytes from each rank of `expected`, in exchange for those to each of `sizes`; both give how many.

        When `outgoing` fails, that is reported when the ranks agree next.
        """
        made = self._attempt(outgoing)
        sent = made if made is not None else {rank: _bytes(size, "cpu") for rank, size in sizes.items()}
        got = {rank: _bytes(size, self._device) for rank, size in expected.items()}
        with self._talking():
            wishes = [self._operation(dist.isend, data.to(self._device), rank) for rank, data in sorted(sent.items())]
            wishes += [self._operation(dist.irecv, data, rank) for rank, data in sorted(got.items())]
            for work in dist.batch_isend_irecv(wishes) if wishes else ():
                work.wait()
        return {rank: data.cpu() for rank, data in got.items()}

    def leave(self) -> None:
        """Destroy the group, if it is still there, and forget it: who still waits to talk over it gets an error."""
        group, self._group = self._group, None
        if not self._left:
            self._left = True
            with suppress(ValueError):
                dist.destroy_process_group(group)

    @contextmanager
    def _talking(self) -> Iterator[None]:
        with rank_failures(), self._warning_when_late():
            if self._left:  # what would otherwise be said to the default group
                raise ValueError("this process has left the group")
            yield

    @contextmanager
    def _warning_when_late(self) -> Iterator[None]:
        """Log a warning when these ranks are late that never met before: most likely only some make this call."""
        if self.members in _MET:
            yield
            return
        late = threading.Timer(_LATE_SECONDS, _LOG.warning, [_LATE, self.rank, self.count, _LATE_SECONDS])
        late.daemon = True
        uninterrupted(late.start)
        try:
            yield
        finally:
            late.cancel()
        _MET.add(self.members)

    def _attempt(self, act: Callable[[], T]) -> T | None:
        if self._failure is None:
            try:
                return act()
            except BaseException as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it
                self._failure = error
        return None

    def _operation(self, kind: Callable[..., Any], data: torch.Tensor, peer: int) -> dist.P2POp:
        return dist.P2POp(kind, data, group=self._group, group_peer=peer)

    def _answers(
        self, everything: Sequence[tuple[_Failure | None, Any]], answer: Callable[[list[Any]], Sequence[A]]
    ) -> tuple[list[tuple[str | None, A | None]], BaseException | None]:
        failures = {rank: failure for rank, (failure, _) in enumerate(everything) if failure is not None}
        failed = None
        if not failures:
            try:
                messages = [message for _, message in everything]
                _check_alike(messages)
                return [(None, given) for given in answer(messages)], None
            except BaseException as error:  # noqa: BLE001 - as above
                failed = error
                failures = {_COORDINATOR: _failure(error)}
        return [(_reason(failures), None)] * self.count, failed

    def _gather(self, message: Any) -> list[Any]:
        if self.count == 1:
            return [message]
        everything: list[bytes] | None = [b""] * self.count if self.is_coordinator else None
        with self._talking():
            dist.gather_object(packed(message), everything, group=self._group, group_dst=_COORDINATOR)
        return [unpacked(each) for each in everything or ()]

    def _scatter(self, answers: Sequence[Any]) -> Any:
        if self.count == 1:
            return answers[0]
        given: list[Any] = [None]
        with self._talking():
            dist.scatter_object_list(given, list(answers) or None, group=self._group, group_src=_COORDINATOR)
        return given[0]


def packed(message: Any) -> bytes:
    """What a rank sends to the coordinator: paths and shapes repeat themselves."""
    return frames.pack(pickle.dumps(message))


def unpacked(sent: bytes) -> Any:
    """The inverse of `packed`."""
    return pickle.loads(frames.unpack(sent))


def _bytes(size: int, device: torch.device | str) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


def _check_alike(messages: Sequence[object]) -> None:
    """Raises InvalidArgument when ranks are not at the same place, since they were called otherwise."""
    if len({type(each) for each in messages}) > 1:
        raise InvalidArgument(
            "ranks are at different calls, as commit and commit_async are: let all ranks call the same"
        )


def _failure(error: BaseException) -> _Failure:
    passing = isinstance(error, _PASSING) and not isinstance(error, _MISTAKES)
    return _Failure(f"{type(error).__name__}: {error}", passing)


def _reason(failures: Mapping[int, _Failure]) -> str:
    reasons = "; ".join(f"rank {rank} failed: {failure.reason}" for rank, failure in failures.items())
    return f"{reasons}; the same may be committed again" if all(each.passing for each in failures.values()) else reasons
