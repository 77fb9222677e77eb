"""Policies: which commits of a run to keep. Join them with `|`; a commit that any of them keeps is kept."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Literal

from ckptstore.catalog.records import CommitRecord
from ckptstore.errors import InvalidArgument, nearest, require

_WANTED = "keep() gives a dict, {commit.id: reason}"


class Policy(ABC):
    """A keep policy; subclass it for one of your own."""

    @abstractmethod
    def keep(self, commits: Sequence[CommitRecord]) -> dict[str, str]:
        """Of the live commits of one run, by ascending step: id of each that is kept → the reason."""

    def doubt(self, commits: Sequence[CommitRecord]) -> str:
        """What makes it look as if it was not meant so, in a sentence; "" if nothing does."""
        return ""

    def __or__(self, other: Policy) -> Policy:
        if not isinstance(other, Policy):
            return NotImplemented
        return _Union((self, other))


@dataclass(frozen=True, slots=True)
class _Union(Policy):
    parts: tuple[Policy, ...]

    def keep(self, commits: Sequence[CommitRecord]) -> dict[str, str]:
        kept: dict[str, str] = {}
        for part in self.parts:
            kept = _named_by(part, commits) | kept
        return kept

    def doubt(self, commits: Sequence[CommitRecord]) -> str:
        return next(filter(None, (part.doubt(commits) for part in self.parts)), "")


def kept_by(policy: Policy, commits: Sequence[CommitRecord]) -> dict[str, str]:
    """What a policy keeps. Raises InvalidArgument for what cannot be meant, since all else would go."""
    kept = _named_by(policy, commits)
    if kept and commits and not kept.keys() & {commit.id for commit in commits}:
        raise _no_ids(policy, next(iter(kept)))
    return kept


def _named_by(policy: Policy, commits: Sequence[CommitRecord]) -> dict[str, str]:
    """Likewise; of several policies one may name only what is gone, or of another run."""
    kept: object = policy.keep(commits)
    if not isinstance(kept, Mapping):
        raise InvalidArgument(f"{policy!r} keeps a {type(kept).__name__}: {_WANTED}")
    for name in kept:
        if not isinstance(name, str):
            raise _no_ids(policy, name)
    return dict(kept)


def _no_ids(policy: Policy, name: object) -> InvalidArgument:
    return InvalidArgument(f"{policy!r} keeps {name!r}, which is no id of a commit: {_WANTED}")


@dataclass(frozen=True, slots=True)
class KeepLast(Policy):
    """Keeps the `count` highest steps."""

    count: int

    def __post_init__(self) -> None:
        require(_is_count(self.count, 0), f"KeepLast({self.count!r}): give 0 or more steps to keep")

    def keep(self, commits: Sequence[CommitRecord]) -> dict[str, str]:
        """The last ones."""
        last = commits[len(commits) - min(self.count, len(commits)) :]
        return {commit.id: f"one of the last {self.count}" for commit in last}


@dataclass(frozen=True, slots=True)
class KeepEvery(Policy):
    """Keeps the steps that `interval` divides."""

    interval: int

    def __post_init__(self) -> None:
        require(_is_count(self.interval, 1), f"KeepEvery({self.interval!r}): give an interval of at least 1")

    def keep(self, commits: Sequence[CommitRecord]) -> dict[str, str]:
        """The divisible ones."""
        return {commit.id: f"a multiple of {self.interval}" for commit in commits if commit.step % self.interval == 0}


@dataclass(frozen=True, slots=True)
class KeepEverySeconds(Policy):
    """Keeps the first commit, and each that was made at least `seconds` after the last one kept.

    A clock that goes back by as much counts as time that went by, lest one commit from the future drops all later ones.
    """

    seconds: float

    def __post_init__(self) -> None:
        require(_is_span(self.seconds), f"KeepEverySeconds({self.seconds!r}): give more than 0 seconds")

    def keep(self, commits: Sequence[CommitRecord]) -> dict[str, str]:
        """Those far enough apart."""
        kept: dict[str, str] = {}
        last = -math.inf
        for commit in commits:
            if abs(commit.created - last) >= self.seconds:
                last = commit.created
                kept[commit.id] = f"{self.seconds} s after the one before"
        return kept


@dataclass(frozen=True, slots=True)
class KeepIf(Policy):
    """Keeps the commits for which `choose` is true."""

    choose: Callable[[CommitRecord], bool]

    def __post_init__(self) -> None:
        require(callable(self.choose), f"KeepIf({self.choose!r}): give a function of a commit")

    def keep(self, commits: Sequence[CommitRecord]) -> dict[str, str]:
        """The chosen ones."""
        return {commit.id: "chosen" for commit in commits if self.choose(commit)}


@dataclass(frozen=True, slots=True)
class KeepBest(Policy):
    """Keeps the `count` commits whose metadata has the lowest (or highest) number under `metric`."""

    metric: str
    count: int = 1
    mode: Literal["min", "max"] = "min"

    def __post_init__(self) -> None:
        require(isinstance(self.metric, str), f"KeepBest({self.metric!r}): give a name that metadata has")
        require(_is_count(self.count, 0), f"KeepBest({self.metric!r}, {self.count!r}): give 0 or more steps to keep")
        require(self.mode in ("min", "max"), f"KeepBest mode {self.mode!r}: choose min or max")

    def keep(self, commits: Sequence[CommitRecord]) -> dict[str, str]:
        """The best ones; commits without the metric, or with NaN, are never among them. Ties go to the later step."""
        sign = 1 if self.mode == "min" else -1
        rated = [(commit, commit.metadata.get(self.metric)) for commit in commits]
        numbers = [
            (sign * value, -commit.step, commit)
            for commit, value in rated
            if isinstance(value, int | float) and not math.isnan(value)
        ]
        best = sorted(numbers, key=lambda rating: rating[:2])[: self.count]
        return {commit.id: f"one of the {self.count} best by {self.metric}" for _, _, commit in best}

    def doubt(self, commits: Sequence[CommitRecord]) -> str:
        """There are commits, and none of them has the metric."""
        known = sorted({key for commit in commits for key in commit.metadata})
        if not self.count or not commits or self.metric in known:
            return ""
        return f"no commit has {self.metric!r} in its metadata; {nearest(self.metric, known)}"


def _is_count(value: object, least: int) -> bool:
    return isinstance(value, Integral) and int(value) >= least


def _is_span(value: object) -> bool:
    return isinstance(value, int | float) and value > 0
