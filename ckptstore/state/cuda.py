"""Lanes on CUDA devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

_MARGIN = 0.1
"""Part of a device's memory that is left to training, beyond what that holds."""


@dataclass(frozen=True, slots=True)
class CudaMark:
    """An event."""

    event: torch.cuda.Event

    def wait(self) -> None:
        self.event.synchronize()


class CudaLane:
    """A side stream. Current streams are those of the calling thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def follow(self) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))

    def submit(self, work: Callable[[], None], uses: Sequence[Tensor] = ()) -> None:
        with torch.cuda.stream(self._stream):
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

    def allocate(self, size: int) -> Tensor:
        with torch.cuda.stream(self._stream):  # whose memory it is from here on
            return torch.empty(size, dtype=torch.uint8, device=self._device)

    def pinned(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)


def cuda_lane(tensor: Tensor) -> CudaLane:
    """The lane of the device of a tensor."""
    return _lane(tensor.device)


@cache
def _lane(device: torch.device) -> CudaLane:
    return CudaLane(device)
