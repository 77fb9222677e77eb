"""A state of containers and leaves, built again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from ckptstore.errors import CkptStoreError, CorruptData, PathNotFound, StateError, nearest
from ckptstore.format.manifest import Container
from ckptstore.state import composites
from ckptstore.state.containers import build_container
from ckptstore.state.paths import segment, selector
from ckptstore.state.values import decode

_ABSENT = object()


def unflatten(
    containers: Mapping[str, Container],
    leaves: Mapping[str, object],
    *,
    root: str = "",
    allow_pickle: bool = False,
) -> Any:
    """The state beneath `root`, of leaves that are decoded already.

    Leaves may be absent: mappings then lack their keys, sequences, records and composite tensors become dicts of what
    is there, and containers of which nothing is there vanish, except those that were empty.

    Raises:
        PathNotFound: nothing is at `root`.
        UnknownType: a dataclass or namedtuple that this process has not imported.
        StateError: a dict would lose one of several ranks' keys, such as 1 and an IntEnum's member.
    """
    found = _Build(containers, leaves, allow_pickle).at(root)
    if found is _ABSENT:
        raise PathNotFound(f"nothing is at {root!r}; {nearest(root, leaves)}")
    return found


def narrow(containers: Mapping[str, Container], globs: Iterable[str]) -> dict[str, Container]:
    """The containers without the empty ones that no glob selects."""
    selects = selector(globs)
    return {path: container for path, container in containers.items() if container.keys or selects(path)}


@dataclass(frozen=True, slots=True)
class _Build:
    containers: Mapping[str, Container]
    leaves: Mapping[str, object]
    allow_pickle: bool
    composites: dict[tuple[object, ...], torch.Tensor] = field(default_factory=dict)
    """By what they are, and the ids of their parts: what shares all of that was tied."""

    def at(self, path: str) -> Any:
        if path in self.leaves:
            return self.leaves[path]
        container = self.containers.get(path)
        if container is None:
            return _ABSENT
        try:
            children = _distinct([*self._children(container, path)], path)
            if container.keys and not children:
                return _ABSENT
            return self._built(container, children, path)
        except (LookupError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError) as error:
            if isinstance(error, CkptStoreError):
                raise
            raise CorruptData(f"{path!r}: its {container.kind} is damaged: {error}") from error

    def _built(self, container: Container, children: dict[Any, Any], path: str) -> Any:
        if container.kind not in composites.KINDS:
            return build_container(container, children, path, allow_pickle=self.allow_pickle)
        if len(children) < len(container.keys):
            return children
        what = container.kind, msgspec.msgpack.encode(container.attributes), *map(id, children.values())
        if what not in self.composites:
            self.composites[what] = composites.build_composite(path, container, children)
        return self.composites[what]

    def _children(self, container: Container, path: str) -> Iterator[tuple[Any, Any]]:
        prefix = f"{path}/" if path else ""
        segments = [segment(key) for key in container.keys]
        if len(set(segments)) < len(segments):
            raise CorruptData(f"{path!r} has the same key twice: run verify")
        for key, name in zip(container.keys, segments, strict=True):
            child = self.at(prefix + name)
            if child is not _ABSENT:
                yield key if type(key) is str else decode(key, path, allow_pickle=self.allow_pickle), child


def _distinct(pairs: Sequence[tuple[Any, Any]], path: str) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        count = Counter(key for key, _ in pairs)
        equal = ", ".join(repr(key) for key, _ in pairs if count[key] > 1)
        raise StateError(f"{path!r} has keys that are equal and were of several ranks, {equal}: choose by paths=")
    return found
