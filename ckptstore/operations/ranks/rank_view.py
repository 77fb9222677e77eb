"""A commit of several ranks, as one of them sees it: what it has for itself stands among what all have."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TypeVar

from ckptstore.errors import StateMismatch
from ckptstore.format.manifest import Container, Manifest
from ckptstore.operations.paths import chosen
from ckptstore.operations.ranks.ranks import Seat
from ckptstore.state.paths import split

T = TypeVar("T")


def seen_from(
    manifest: Manifest, seat: Seat, names: Collection[str], globs: Sequence[str] | None, *, strict: bool
) -> Manifest:
    """The manifest without ranks' numbers, of what is common and what this rank had.

    Raises StateMismatch, if `strict`, for what ranks had each for itself and is wanted beneath these names, when there
    were more or fewer of them.
    """
    root = manifest.containers.get("", Container("dict"))
    count = sum(isinstance(key, int) for key in root.keys)
    if not count:
        return manifest
    if strict and count != seat.of:
        _check_unwanted(manifest, seat, count, names, globs)
    entries = _common(manifest.entries) | _beneath(manifest.entries, seat.rank)
    containers = _beneath(manifest.containers, seat.rank) | _common(manifest.containers)
    ties = (tuple(path.removeprefix(f"{seat.rank}/") for path in group) for group in manifest.aliases)
    return Manifest(entries, containers, tuple(group for group in ties if entries.keys() >= set(group)))


def _common(found: Mapping[str, T]) -> dict[str, T]:
    return {path: it for path, it in found.items() if not _is_own(path)}


def _beneath(found: Mapping[str, T], rank: int) -> dict[str, T]:
    prefix = f"{rank}/"
    return {path.removeprefix(prefix): it for path, it in found.items() if path.startswith(prefix)}


def _check_unwanted(
    manifest: Manifest, seat: Seat, count: int, names: Collection[str], globs: Sequence[str] | None
) -> None:
    owned = {path.partition("/")[2]: None for path in manifest.entries if _is_own(path)}
    wanted = [path for path in chosen(dict.fromkeys(owned, None), globs) if split(path)[0] in names]
    if wanted:
        told = f"each of {count} ranks had its own, and there are {seat.of} now: leave it out, or pass strict=False"
        told += "; what is to be one for all is committed with replicated="
        raise StateMismatch((), (), [f"{path}: {told}" for path in wanted])


def _is_own(path: str) -> bool:
    """Whether a rank has it for itself."""
    return path.partition("/")[0].isdecimal()
