"""Policies: at which steps to save. Join them with `|`; a step that any of them wants is saved."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container
from dataclasses import dataclass
from numbers import Integral

from ckptstore.errors import require


@dataclass(frozen=True, slots=True)
class Moment:
    """What a policy is asked about.

    Attributes:
        step: the step that could be saved.
        last: the step that was saved last, or else the newest of the run when the manager was made; None without any.
        seconds: since the last save, or else since the manager was made.
        saving: whether a commit is in flight.
    """

    step: int
    last: int | None
    seconds: float
    saving: bool


class SavePolicy(ABC):
    """A save policy; subclass it for one of your own. In a process group only rank 0 asks it."""

    @abstractmethod
    def due(self, moment: Moment) -> bool:
        """Whether to save now."""

    def __or__(self, other: SavePolicy) -> SavePolicy:
        if not isinstance(other, SavePolicy):
            return NotImplemented
        return _Union((self, other))


@dataclass(frozen=True, slots=True)
class _Union(SavePolicy):
    parts: tuple[SavePolicy, ...]

    def due(self, moment: Moment) -> bool:
        return any(part.due(moment) for part in self.parts)


@dataclass(frozen=True, slots=True)
class SaveEvery(SavePolicy):
    """Saves the steps that `interval` divides; 0 is one of them."""

    interval: int

    def __post_init__(self) -> None:
        require(_is_interval(self.interval), f"save interval {self.interval!r}: give 1 or more steps, or a SavePolicy")

    def due(self, moment: Moment) -> bool:
        """Whether it divides the step."""
        return moment.step % self.interval == 0


@dataclass(frozen=True, slots=True)
class SaveAt(SavePolicy):
    """Saves the given steps."""

    steps: Container[int]

    def __post_init__(self) -> None:
        require(isinstance(self.steps, Container), f"SaveAt({self.steps!r}): give a set, list or range of steps")

    def due(self, moment: Moment) -> bool:
        """Whether the step is one of them."""
        return moment.step in self.steps


@dataclass(frozen=True, slots=True)
class SaveEverySeconds(SavePolicy):
    """Saves when `seconds` have passed since the last save, or else since the manager was made."""

    seconds: float

    def __post_init__(self) -> None:
        require(_is_span(self.seconds), f"SaveEverySeconds({self.seconds!r}): give 0 or more seconds")

    def due(self, moment: Moment) -> bool:
        """Whether they have passed."""
        return moment.seconds >= self.seconds


@dataclass(frozen=True, slots=True)
class SaveIf(SavePolicy):
    """Saves when `choose` is true of the moment, as `SaveIf(lambda now: not now.saving)`: as often as may be."""

    choose: Callable[[Moment], bool]

    def __post_init__(self) -> None:
        require(callable(self.choose), f"SaveIf({self.choose!r}): give a function of a Moment")

    def due(self, moment: Moment) -> bool:
        """Whether it is."""
        return bool(self.choose(moment))


def as_policy(interval: int | SavePolicy) -> SavePolicy:
    """A policy, also for a number of steps. Raises InvalidArgument."""
    return interval if isinstance(interval, SavePolicy) else SaveEvery(interval)


def _is_interval(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, Integral) and int(value) >= 1


def _is_span(value: object) -> bool:
    return isinstance(value, int | float) and value >= 0
