"""What of a state is another though its leaves may be the same: containers, and what is tied to what."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import msgspec

from ckptstore.format.manifest import Container, Manifest


@dataclass(frozen=True, slots=True)
class Restructured:
    """A container that is another one, whatever it holds.

    Attributes:
        path: its logical path; "" is the whole state's.
        old, new: what it was and is: of another kind, class or attribute, as the scale of a quantised tensor is one, or
            with the keys that both have in another order. None where there was or is none; such a one is empty, since
            leaves show the others.
    """

    path: str
    old: Container | None
    new: Container | None

    @property
    def reordered(self) -> bool:
        """Whether the order of its keys is all that is another."""
        return self.old is not None and self.new is not None and _nature(self.old) == _nature(self.new)


@dataclass(frozen=True, slots=True)
class Retied:
    """A leaf of both states that is one tensor with others of these than before.

    Attributes:
        path: its logical path.
        old, new: the paths of all of these that it was and is one tensor with, its own among them; () where that is
            alone.
    """

    path: str
    old: tuple[str, ...]
    new: tuple[str, ...]


def restructured(old: Manifest, new: Manifest) -> Iterator[Restructured]:
    """Every container that is another, in the order of the new manifest, those that are gone last."""
    for path in dict.fromkeys([*new.containers, *old.containers]):
        before, after = old.containers.get(path), new.containers.get(path)
        if _is_restructured(before, after):
            yield Restructured(path, before, after)


def retied(old: Manifest, new: Manifest) -> Iterator[Retied]:
    """Every leaf that both have and that is tied otherwise to what both have, in the order of the new manifest."""
    common = old.entries.keys() & new.entries.keys()
    known: dict[frozenset[str], tuple[str, ...]] = {}  # one for all that are equal, however many leaves are in them
    before, after = ({} if old.aliases == new.aliases else _ties(each, common, known) for each in (old, new))
    for path in new.entries:
        if before.get(path) is not after.get(path):
            yield Retied(path, before.get(path, ()), after.get(path, ()))


def _is_restructured(old: Container | None, new: Container | None) -> bool:
    if old is None or new is None:
        only = old or new
        return only is not None and not only.keys
    return _nature(old) != _nature(new) or _common_keys(old, new) != _common_keys(new, old)


def _nature(container: Container) -> bytes:
    """Equal for containers that differ in their keys at most."""
    return msgspec.msgpack.encode((container.kind, container.type, container.attributes))


def _common_keys(container: Container, other: Container) -> list[bytes]:
    """Those that both have, encoded, in the order of the first."""
    if container.keys == other.keys:
        return []
    there = set(map(msgspec.msgpack.encode, other.keys))
    return [key for key in map(msgspec.msgpack.encode, container.keys) if key in there]


def _ties(
    manifest: Manifest, common: Collection[str], known: dict[frozenset[str], tuple[str, ...]]
) -> dict[str, tuple[str, ...]]:
    """Path → all that it is one tensor with, as far as they are in common."""
    groups = [tuple(filter(common.__contains__, group)) for group in manifest.aliases]
    tied = [known.setdefault(frozenset(group), group) for group in groups if len(group) > 1]
    return {path: group for group in tied for path in group}
