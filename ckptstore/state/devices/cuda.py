"""Lanes on CUDA devices."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ckptstore.errors import StateError
from ckptstore.locks import Lock
from ckptstore.state.devices.fingerprints import TAKEN
from ckptstore.state.devices.pinned import lasting, pinned

_MARGIN, _SHORT, _SEEN = 0.1, 0.05, 0.001
"""Parts of a device's memory: what is left to training beyond the most that it took, what must be left to keep copies,
and how much less than that it must hold now, to say that it was at work: before, nobody knows what it will take."""

_STATS = ("reserved_bytes", "current"), ("allocated_bytes", "current"), ("allocated_bytes", "peak")
_TURN = Lock()
_LANES: dict[torch.device, CudaLane] = {}


@dataclass(frozen=True, slots=True)
class CudaMark:
    """An event."""

    event: torch.cuda.Event

    def wait(self) -> None:
        self.event.synchronize()


class Usage(NamedTuple):
    """Bytes of a device's memory.

    Attributes:
        total: all of it.
        others: what neither is free nor torch's.
        held: by tensors now.
        peak: by tensors at most, since the process began or somebody reset that.
    """

    total: int
    others: int
    held: int
    peak: int

    @classmethod
    def of(cls, device: torch.device) -> Usage:
        """As it is now."""
        free, total = torch.cuda.mem_get_info(device)
        try:
            stats = torch.cuda.memory_stats_as_nested_dict(device)  # flattening it takes ten times as long
        except RuntimeError:  # an allocator of somebody else keeps none
            stats = {}
        reserved, held, peak = (stats[kind]["all"][what] if stats else 0 for kind, what in _STATS)
        return cls(total, total - free - reserved, held, peak)

    def spare(self) -> int:
        """What may be taken, if anything, so that training finds a margin when it takes again what it took."""
        # Fingerprints take some for a moment, which is no work of training's.
        was_at_work = self.peak - self.held >= max(_SEEN * self.total, TAKEN)
        return max(self._left() - int(_MARGIN * self.total), 0) if was_at_work else 0

    def is_short(self) -> bool:
        """Whether training finds hardly anything beyond what it took."""
        return self._left() < _SHORT * self.total

    def _left(self) -> int:
        return self.total - self.others - self.peak


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

    def submit(self, work: Callable[[], object], uses: Sequence[Tensor] = ()) -> None:
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
        return Usage.of(self._device).spare()

    def is_short(self) -> bool:
        return Usage.of(self._device).is_short()

    def allocate(self, size: int) -> Tensor:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):  # whose memory it is from here on
            return torch.empty(size, dtype=torch.uint8, device=self._device)

    def pinned(self, size: int) -> Tensor:
        return pinned(size)

    def lasting(self, size: int) -> Tensor:
        return lasting(size, self._device, lambda: self.mark().wait())


def cuda_lane(tensor: Tensor) -> CudaLane:
    """The lane of the device of a tensor."""
    device = tensor.device
    lane = _LANES.get(device)
    if lane is None:
        with _TURN:  # or two threads make two
            lane = _LANES.get(device) or _LANES.setdefault(device, CudaLane(device))
    return lane
