"""Lanes on CUDA devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from threading import Lock

import torch
from torch import Tensor

from ckptstore.errors import StateError

_MARGIN, _SHORT = 0.1, 0.05
"""Parts of a device's memory: what is left to training beyond what that holds, and what must be left to keep copies."""

_TURN = Lock()


@dataclass(frozen=True, slots=True)
class CudaMark:
    """An event."""

    event: torch.cuda.Event

    def wait(self) -> None:
        self.event.synchronize()


class CudaLane:
    """A side stream. Current streams are those of the calling thread.

    Leaving a stream, torch selects the device that was current before, and that makes a context there: so it must be
    this one.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def follow(self) -> None:
        if torch.cuda.is_current_stream_capturing():
            raise StateError("a CUDA graph is being captured: commit before that, or behind it")
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def submit(self, work: Callable[[], None], uses: Sequence[Tensor] = ()) -> None:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            work()
        for tensor in uses:
            tensor.record_stream(self._stream)

    def mark(self) -> CudaMark:
        # Who waits for it leaves the core to others.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(self._stream)
        return CudaMark(event)

    def hold_back(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)

    def spare_bytes(self) -> int:
        free, total = torch.cuda.mem_get_info(self._device)
        return free - int(_MARGIN * total)

    def is_short(self) -> bool:
        free, total = torch.cuda.mem_get_info(self._device)
        return free < _SHORT * total

    def allocate(self, size: int) -> Tensor:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):  # whose memory it is from here on
            return torch.empty(size, dtype=torch.uint8, device=self._device)

    def pinned(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)


def cuda_lane(tensor: Tensor) -> CudaLane:
    """The lane of the device of a tensor."""
    with _TURN:  # or two threads make two
        return _lane(tensor.device)


@cache
def _lane(device: torch.device) -> CudaLane:
    return CudaLane(device)
