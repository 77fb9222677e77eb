"""What the processes that train together agree on, step by step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ckptstore.errors import InvalidArgument, RankFailed
from ckptstore.operations.ranks.gloo import gloo_beside
from ckptstore.operations.ranks.groups import rank_failures

_FAILED, _NONE = -2, -1


@dataclass(frozen=True, slots=True)
class Ballot:
    """What is known at a step, by one rank or by all together.

    Attributes:
        due: whether rank 0's policy wants a commit.
        preempted: whether any rank is about to be taken away.
        failed: whether anything failed in the background of any rank.
    """

    due: bool
    preempted: bool
    failed: bool


class Agreement:
    """The processes of a group, or this one alone when there is none.

    They talk over a group of their own, which is made here, by all of them.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group: dist.ProcessGroup | None = None
        if dist.is_available() and dist.is_initialized():
            self._group = gloo_beside(group)

    @property
    def leads(self) -> bool:
        """Whether this is rank 0 of them."""
        return self._group is None or dist.get_rank(self._group) == 0

    def agree(self, step: int, mine: Ballot) -> Ballot:
        """The ballot of all; called by all.

        Raises:
            InvalidArgument: not all asked about the same step.
            RankFailed: a rank is gone.
        """
        if self._group is None:
            return mine
        ballot = [mine.due and self.leads, mine.preempted, mine.failed, step, -step]
        due, preempted, failed, highest, lowest = self._highest(ballot)
        if highest != -lowest:
            raise InvalidArgument(f"ranks are at steps {-lowest} to {highest} at once: ask for the same step on all")
        return Ballot(bool(due), bool(preempted), bool(failed))

    def from_first(self, find: Callable[[], int | None]) -> int | None:
        """The step that `find` gives on rank 0; called by all. Raises RankFailed, and on rank 0 what `find` raises."""
        if self._group is None:
            return find()
        answer, error = _FAILED, None
        if self.leads:
            try:
                found = find()
                answer = _NONE if found is None else found
            except Exception as caught:  # noqa: BLE001 - the others wait for an answer
                error = caught
        answer = self._highest([answer])[0]
        if error is not None:
            raise error
        if answer == _FAILED:
            raise RankFailed("rank 0 could not look for a step: its own error says why")
        return None if answer == _NONE else answer

    def _highest(self, values: list[int]) -> list[int]:
        """The highest of each number over all ranks.

        Each round doubles how many ranks a rank has heard of: a thousand need ten rounds, where gloo's all-reduce sends
        two thousand messages one after the other.
        """
        highest = torch.tensor(values, dtype=torch.int64, device="cpu")
        rank, size = dist.get_rank(self._group), dist.get_world_size(self._group)
        distance = 1
        while distance < size:
            theirs = torch.empty_like(highest)
            with rank_failures():
                sending = dist.isend(highest, group=self._group, group_dst=(rank + distance) % size)
                dist.recv(theirs, group=self._group, group_src=(rank - distance) % size)
                assert sending is not None
                sending.wait()
            highest = highest.maximum(theirs)
            distance *= 2
        found: list[int] = highest.tolist()
        return found
