"""What of a state is another though its leaves may be the same: containers, and what is tied to what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from ckptstore.format.manifest import Container, Manifest
from ckptstore.state.paths import segment


@dataclass(frozen=True, slots=True)
class Restructured:
    """A container that is another one, whatever it holds.

    Attributes:
        path: its logical path; "" is the whole state's.
        old, new: what it was and is: of another kind, class or attribute, as the scale of a quantised tensor is one, or
            with the keys that both have in another order. None where there was or is none; such a one is empty, since
            leaves tell of others.
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
    """A leaf of the new state that is tied to another than before.

    Attributes:
        path: its logical path.
        old, new: the path of the first leaf of those that it was and is one tensor with; "" when that is itself.
    """

    path: str
    old: str
    new: str


def restructured(old: Manifest, new: Manifest) -> Iterator[Restructured]:
    """Every container that is another, in the order of the new manifest, those that are gone last."""
    for path in dict.fromkeys([*new.containers, *old.containers]):
        before, after = old.containers.get(path), new.containers.get(path)
        if _is_told(before, after):
            yield Restructured(path, before, after)


def retied(old: Manifest, new: Manifest) -> Iterator[Retied]:
    """Every leaf of the new manifest that is tied otherwise."""
    before, after = old.tied, new.tied
    for path in new.entries:
        if before.get(path, "") != after.get(path, ""):
            yield Retied(path, before.get(path, ""), after.get(path, ""))


def _is_told(old: Container | None, new: Container | None) -> bool:
    if old is None or new is None:
        only = old or new
        return only is not None and not only.keys
    return _nature(old) != _nature(new) or _common_keys(old, new) != _common_keys(new, old)


def _nature(container: Container) -> bytes:
    """Equal for containers that differ in their keys at most."""
    return msgspec.msgpack.encode((container.kind, container.type, container.attributes))


def _common_keys(container: Container, other: Container) -> list[str]:
    """Those that both have, in the order of the first."""
    if container.keys == other.keys:
        return []
    there = {segment(key) for key in other.keys}
    return [key for key in map(segment, container.keys) if key in there]
