"""A commit of several ranks, as one of them sees it: what it has for itself stands among what all have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from ckptstore.errors import StateMismatch
from ckptstore.format.manifest import Container, Manifest
from ckptstore.operations.paths import chosen
from ckptstore.operations.ranks.groups import Seat
from ckptstore.state.paths import is_within, root_of, split

T = TypeVar("T")


def seen_from(
    manifest: Manifest,
    seat: Seat,
    names: Collection[str],
    globs: Sequence[str] | None,
    wholes: Collection[str],
    *,
    strict: bool,
) -> Manifest:
    """The manifest without ranks' numbers, of what is common and what this rank had.

    A rank that did not take part has nothing of what ranks had partly for themselves and is loaded whole, or not at
    all, at the paths `wholes`. Raises StateMismatch, if `strict`, for what ranks had each for itself and is wanted
    beneath these names, when there were more or fewer of them.
    """
    root = manifest.containers.get("", Container("dict"))
    count = sum(isinstance(key, int) for key in root.keys)
    if not count:
        return manifest
    owned = {path.partition("/")[2]: None for path in manifest.entries if is_own(path)}
    if strict and count != seat.of:
        _check_unwanted([*chosen(owned, globs)], seat, count, names)
    lacking = set[str]() if seat.rank < count else {root_of(path, wholes) for path in owned}
    entries = _common(manifest.entries, lacking) | _beneath(manifest.entries, seat.rank)
    containers = _beneath(manifest.containers, seat.rank) | _common(manifest.containers, lacking)
    ties = (tuple(path.removeprefix(f"{seat.rank}/") for path in group) for group in manifest.aliases)
    return Manifest(entries, containers, tuple(group for group in ties if entries.keys() >= set(group)))


def own_paths(manifest: Manifest, seat: Seat) -> set[str]:
    """Where leaves stand that this rank had for itself, without its number."""
    return set(_beneath(manifest.entries, seat.rank))


def all_paths(manifest: Manifest) -> list[str]:
    """Where anything stands that any rank had, without its number."""
    found = (*manifest.entries, *manifest.containers)
    return [path.partition("/")[2] if is_own(path) else path for path in found]


def _common(found: Mapping[str, T], lacking: Collection[str]) -> dict[str, T]:
    return {path: it for path, it in found.items() if not is_own(path) and not is_within(path, lacking)}


def _beneath(found: Mapping[str, T], rank: int) -> dict[str, T]:
    prefix = f"{rank}/"
    return {path.removeprefix(prefix): it for path, it in found.items() if path.startswith(prefix)}


def _check_unwanted(owned: Sequence[str], seat: Seat, count: int, names: Collection[str]) -> None:
    wanted = [path for path in owned if split(path)[0] in names]
    if wanted:
        problem = f"each of {count} ranks had its own, and there are {seat.of} now: leave it out, or pass strict=False"
        problem += "; what is to be one for all is committed with replicated="
        raise StateMismatch((), (), [f"{path}: {problem}" for path in wanted])


def is_own(path: str) -> bool:
    """Whether a rank has it for itself."""
    first = path.partition("/")[0]
    return first.isascii() and first.isdecimal()  # names that read so are escaped
