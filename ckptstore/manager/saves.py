"""What was saved last, and what of it is in flight or failed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ckptstore.operations.committing.handles import CommitHandle


@dataclass(frozen=True, slots=True)
class Saved:
    """A save: its step, None before the first, and when it was, on the monotonic clock."""

    step: int | None
    at: float


class Saves:
    """The saves of one manager, of which one may be in flight.

    Attributes:
        last: the last one, unless that failed in the background: then the one before.
        flight: the last background commit, until its failure was seen.
    """

    def __init__(self) -> None:
        self.last = self._before_flight = Saved(None, time.monotonic())
        self.flight: CommitHandle | None = None
        self._error: Exception | None = None

    @property
    def in_progress(self) -> bool:
        """Whether a commit is in flight."""
        return self.flight is not None and not self.flight.done()

    @property
    def failed(self) -> bool:
        """Whether an error is held, see `holding`."""
        return self._error is not None

    @property
    def recent(self) -> set[int]:
        """The step of the last save, and until that is durable the one before."""
        flight = self.flight
        durable = flight is None or (flight.done() and flight.exception() is None)
        some = [self.last] if durable else [self._before_flight, self.last]
        return {saved.step for saved in some if saved.step is not None}

    def begun(self, handle: CommitHandle) -> None:
        """A commit is in flight, of the save that is about to be `made`."""
        self.flight, self._before_flight = handle, self.last

    def made(self, step: int) -> None:
        """A step was saved now."""
        self.last = Saved(step, time.monotonic())

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep what is raised for the next `surface`."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is
            self._error = error

    def surface(self) -> None:
        """Raise what failed and nobody saw; wait for nothing."""
        error, self._error = self._error, None
        if error is not None:
            raise error
        if self.flight is not None and self.flight.done():
            self.land()

    def land(self) -> None:
        """Wait for the commit in flight, and raise what failed of it."""
        if self.flight is not None:
            try:
                self.flight.surface()
            finally:
                self.take_back()

    def take_back(self) -> None:
        """What failed in the background was not saved."""
        if self.flight is not None and self.flight.done() and self.flight.exception() is not None:
            self.flight, self.last = None, self._before_flight
