"""Chunks on their way from the host into tensors on devices, while further ones are read and decoded."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from math import prod
from threading import Condition

import torch
from torch import Tensor

from ckptstore.format.grid import Index, extents
from ckptstore.locks import Lock
from ckptstore.state.arrays import Array, copy_into_box
from ckptstore.state.casts import write_cast
from ckptstore.state.devices.lanes import Lane, Mark, lane_of


class Uploads:
    """They come behind what the current queues of the targets' devices were given before this was made.

    What is written, and not sent as it is, takes at most `most` bytes at once, or one chunk if that is larger. Safe for
    threads.

    Attributes:
        lanes: of these devices.
    """

    def __init__(self, targets: Iterable[Array], most: int) -> None:
        self._most = most
        self._held = 0
        self._under_way: deque[tuple[Mark, int]] = deque()
        self._lock = Lock()
        self._turn = Condition(self._lock)
        self.lanes = {lane for lane in map(lane_of_array, targets) if lane is not None}
        for lane in self.lanes:
            lane.follow()

    def write(self, target: Array, start: Index, stop: Index, data: memoryview, dtype: torch.dtype | None) -> None:
        """`write_cast`, which for a device may be over only when `finish` returns; the buffer may be used again."""
        lane = lane_of_array(target)
        if lane is None or not isinstance(target, Tensor) or not len(data):
            write_cast(target, start, stop, data, dtype)
            return
        count = prod(extents(start, stop))
        with self._pinned(lane, count * target.itemsize) as pinned:
            write_cast(pinned.view(target.dtype), (0,), (count,), data, dtype)
            self._submit(lane, partial(copy_into_box, target, start, stop, pinned), target, len(pinned))

    def send(self, target: Tensor, data: memoryview) -> None:
        """As many bytes to a flat part of a device's memory; the buffer stays as it is until `finish` was called."""
        lane = lane_of(target)
        assert lane is not None
        source = torch.frombuffer(data, dtype=torch.uint8)
        lane.submit(partial(target.copy_, source, non_blocking=True), [target])

    def memory(self, size: int) -> memoryview:
        """At least as many bytes of the host, from where devices fetch by themselves what is sent.

        A power of two, as what is pinned for CUDA is anyway: what is a little larger goes there the next time.
        """
        return next(iter(self.lanes)).pinned(1 << max(size - 1, 0).bit_length()).numpy().data

    def finish(self) -> None:
        """Wait until everything is there that was given before."""
        for lane in self.lanes:
            lane.mark().wait()

    def _submit(self, lane: Lane, work: Callable[[], object], target: Tensor, size: int) -> None:
        with self._lock:
            lane.submit(work, [target])
            self._under_way.append((lane.mark(), size))

    @contextmanager
    def _pinned(self, lane: Lane, size: int) -> Iterator[Tensor]:
        """As many bytes of the host, once there is room; given back when they do not get under way."""
        with self._lock:
            while self._held and self._held + size > self._most:
                self._wait_for_one()
            self._held += size
        try:
            yield lane.pinned(size)
        except BaseException:
            with self._lock:
                self._held -= size
            raise
        finally:
            with self._lock:
                self._turn.notify_all()

    def _wait_for_one(self) -> None:
        if not self._under_way:
            self._turn.wait()
            return
        mark, size = self._under_way.popleft()
        self._held -= size
        mark.wait()


def lane_of_array(array: Array) -> Lane | None:
    """The lane of the device where an array lies, if it lies on one."""
    return lane_of(array) if isinstance(array, Tensor) else None
