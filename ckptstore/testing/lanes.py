"""A device that is none: memory of the host that is reached through a lane only, whose queues run when they like."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import torch
from torch import Tensor

from ckptstore.state.devices import lanes

_GARBAGE = 0xA5


class FakeQueue:
    """Work that is done in order, as far as it was asked for."""

    def __init__(self) -> None:
        self.given = self.done = 0
        self._pending: deque[Callable[[], object]] = deque()

    def give(self, work: Callable[[], object]) -> None:
        """Work for later."""
        self._pending.append(work)
        self.given += 1

    def run_to(self, count: int) -> None:
        """Do the first `count` of all that was ever given; `work` may be to let another queue run."""
        while self.done < count:
            self.done += 1  # also where it fails
            self._pending.popleft()()


@dataclass(frozen=True, slots=True)
class FakeMark:
    """So many of the works of a lane's side queue."""

    lane: FakeLane
    count: int

    def wait(self) -> None:
        with self.lane.turn:
            self.lane.side.run_to(self.count)


@dataclass(eq=False)
class FakeLane:
    """A lane whose two queues run as late as they may, or sooner, as chance has it.

    Attributes:
        chance: decides how far each queue runs whenever one is given work.
        room: bytes that may be allocated; `spare_bytes` gives them, and they are short when there are less than none.
        broken: whether `allocate` raises torch.OutOfMemoryError, whatever room there is.
        crossed: bytes that host memory was asked for, all in all.
        lasted: how many of these were to last.
    """

    chance: random.Random
    room: int = 1 << 30
    broken: bool = False
    crossed: int = 0
    lasted: int = 0
    current: FakeQueue = field(default_factory=FakeQueue)
    side: FakeQueue = field(default_factory=FakeQueue)
    turn: threading.RLock = field(default_factory=threading.RLock)

    def train(self, work: Callable[[], object]) -> None:
        """Give the current queue something that changes tensors."""
        self._give(self.current, work)

    def synchronize(self) -> None:
        """Run everything."""
        with self.turn:
            self.current.run_to(self.current.given)
            self.side.run_to(self.side.given)

    def follow(self) -> None:
        count = self.current.given
        self._give(self.side, lambda: self.current.run_to(count))

    def submit(self, work: Callable[[], object], uses: Sequence[Tensor] = ()) -> None:
        self._give(self.side, work)

    def mark(self) -> FakeMark:
        return FakeMark(self, self.side.given)

    def hold_back(self) -> None:
        count = self.side.given
        self._give(self.current, lambda: self.side.run_to(count))

    def spare_bytes(self) -> int:
        return self.room

    def is_short(self) -> bool:
        return self.room < 0

    def allocate(self, size: int) -> Tensor:
        if self.broken or size > self.room:
            raise torch.OutOfMemoryError("the fake device is full")
        self.room -= size
        return torch.full((size,), _GARBAGE, dtype=torch.uint8, device="cpu")

    def pinned(self, size: int) -> Tensor:
        self.crossed += size
        return torch.full((size,), _GARBAGE, dtype=torch.uint8, device="cpu")

    def lasting(self, size: int) -> Tensor:
        self.lasted += size
        return self.pinned(size)

    def _give(self, queue: FakeQueue, work: Callable[[], object]) -> None:
        with self.turn:
            queue.give(work)
            for one in self.chance.sample([self.current, self.side], 2):
                one.run_to(max(one.done, self.chance.choice([one.done, self.chance.randint(one.done, one.given)])))


class FakeDevices:
    """As a context manager, tensors that were put on fake devices are found there."""

    def __init__(self, seed: int = 0, count: int = 1, room: int = 1 << 30) -> None:
        self.lanes = [FakeLane(random.Random(seed + number), room) for number in range(count)]  # noqa: S311 - it keeps no secret
        self._homes: dict[int, tuple[Tensor, FakeLane]] = {}

    def __enter__(self) -> Self:
        lanes.FINDERS["cpu"] = self._lane
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        del lanes.FINDERS["cpu"]

    def put(self, tensor: Tensor, number: int = 0) -> Tensor:
        """The same tensor, which lies on a device from here on, with all that shares its memory."""
        self._homes[tensor.untyped_storage().data_ptr()] = tensor, self.lanes[number]
        return tensor

    def _lane(self, tensor: Tensor) -> FakeLane | None:
        home = self._homes.get(tensor.untyped_storage().data_ptr())
        return None if home is None else home[1]
