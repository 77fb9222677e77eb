"""The seam between staging and a device that has memory of its own and works while the host does something else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from ckptstore.state.devices.cuda import cuda_lane


class Mark(Protocol):
    """A point in a lane's work."""

    def wait(self) -> None:
        """Let the host wait until the lane has come here."""


class Lane(Protocol):
    """A queue of work on one device beside the queue that training uses there, the current one.

    Work of both runs at any time after it was given, in order within a queue, and in no order between queues except
    where `follow` and `hold_back` make one. So a copy is only of what training wrote before `follow`, training only
    changes what was copied after `hold_back`, and the host may only look at a copy after `Mark.wait`. All of it is a
    seam, so that tests can run queues in every order that a device may, which a device seldom does.
    """

    def follow(self) -> None:
        """What is submitted from here on waits for what the caller's current queue was given so far.

        Raises StateError when that is not done, but recorded to be done again.
        """

    def submit(self, work: Callable[[], object], uses: Sequence[Tensor] = ()) -> None:
        """Do operations of torch on this device here; `uses` are tensors of other queues whose memory stays until then.

        `work` may run before this returns or later, in another thread; it must not wait for the device.
        """

    def mark(self) -> Mark:
        """The point behind everything that was submitted so far."""

    def hold_back(self) -> None:
        """What the caller's current queue is given from here on waits for everything that was submitted so far."""

    def spare_bytes(self) -> int:
        """How much memory of the device may be taken and leaves training a margin; none before it was at work."""

    def is_short(self) -> bool:
        """Whether training may soon want the memory that was taken."""

    def allocate(self, size: int) -> Tensor:
        """As many bytes on the device. Raises torch.OutOfMemoryError."""

    def pinned(self, size: int) -> Tensor:
        """As many bytes of the host that the device reaches by itself, for a while.

        They may be dropped while work with them is under way.
        """

    def lasting(self, size: int) -> Tensor:
        """The same for long: who drops them while work is under way waits for it."""


FINDERS: dict[str, Callable[[Tensor], Lane | None]] = {"cuda": cuda_lane}
"""Type of device → what finds the lane of a tensor there."""


def lane_of(tensor: Tensor) -> Lane | None:
    """The lane of the device where a tensor lies; None for memory of the host, and for devices of other kinds."""
    find = FINDERS.get("cuda" if tensor.is_cuda else "cpu" if tensor.is_cpu else tensor.device.type)  # the last is slow
    return None if find is None else find(tensor)
