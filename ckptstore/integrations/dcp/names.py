"""DCP's flat names and logical paths.

DCP calls a leaf by the keys on the way to it, as str, joined by dots: `model.layers.0.weight`. What a planner knows of
these keys, str in mappings and int in lists, makes the logical path: `model/layers.0.weight`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ckptstore.errors import StateError
from ckptstore.format.manifest import MAPPINGS, Container, Manifest, TensorEntry
from ckptstore.integrations.trees import KeyPath
from ckptstore.operations.ranks.groups import Seat
from ckptstore.operations.ranks.rank_view import seen_from
from ckptstore.state.composites import KINDS as COMPOSITES
from ckptstore.state.paths import join, parse, segment, split
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.values import decode

_SEQUENCES = frozenset({"list", "tuple", "deque"})


def logical_path(keys: KeyPath) -> str:
    """The logical path of a leaf."""
    return join(*map(segment, keys))


def containers_of(leaves: Iterable[KeyPath]) -> dict[str, Container]:
    """The dicts and lists on the way to all leaves.

    Raises:
        StateError: a leaf stands where another one needs a container, or keys are those of a dict and of a list.
    """
    children: dict[KeyPath, dict[str | int, None]] = {(): {}}
    ends = set()
    for keys in leaves:
        ends.add(keys)
        for depth, key in enumerate(keys):
            children.setdefault(keys[:depth], {})[key] = None
    for keys in ends & children.keys():
        raise StateError(f"{'.'.join(map(str, keys))!r} is a leaf on one rank and a container on another")
    return {logical_path(keys): _container(keys, tuple(held)) for keys, held in children.items()}


def is_taken_apart(path: str, containers: Mapping[str, Container], leaves: Mapping[str, object]) -> bool:
    """Whether DCP sees leaves of what is at a path: of mappings, and of lists with a tensor or another such container.

    `leaves` are a state's or a manifest's.
    """
    container = containers.get(path)
    if container is None or container.kind != "list":
        return container is not None and container.kind in MAPPINGS
    children = _children(path, container)
    return any(_is_tensor(child, containers, leaves) or is_taken_apart(child, containers, leaves) for child in children)


def flat_names(manifest: Manifest) -> dict[str, tuple[str, KeyPath]]:
    """DCP's name of every leaf, and of what is one for DCP: its logical path, and its keys.

    A leaf within a tuple has a name too, before that of the tuple. Raises StateError when two have one name.
    """
    names: dict[str, tuple[str, KeyPath]] = {}
    for path in (*manifest.entries, *_whole(manifest)):
        keys = _keys(path, manifest.containers)
        name = ".".join(map(str, keys))
        if name in names:
            problem = f"{names[name][0]!r} and {path!r} have one name in DCP, {name!r}"
            raise StateError(f"{problem}: read this commit with checkout or read")
        names[name] = path, keys
    return names


def own_names(manifest: Manifest, seat: Seat) -> dict[str, tuple[str, KeyPath]]:
    """Likewise, of what this rank had for itself, without its number; what other ranks had is known by theirs alone.

    Raises StateError as above.
    """
    seen = seen_from(manifest, seat, (), None, (), strict=False)
    if seen is manifest:
        return {}
    known = flat_names(manifest)
    found = flat_names(seen).items()
    return {name: (join(str(seat.rank), path), keys) for name, (path, keys) in found if name not in known}


def merged_keys(known: Sequence[Any]) -> dict[str, KeyPath]:
    """DCP's names and their keys, of what the planners of all ranks know.

    Raises StateError for a name that stands for different keys.
    """
    merged: dict[str, KeyPath] = {}
    for mapping in known:
        for name, keys in mapping.items() if isinstance(mapping, Mapping) else ():
            if isinstance(keys, tuple) and merged.setdefault(name, keys) != keys:
                problem = f"{merged[name]} on one rank and {keys} on another are one name once flattened"
                raise StateError(f"{name!r}: {problem}: rename one")
    return merged


def _whole(manifest: Manifest) -> Iterator[str]:
    """The outermost containers that are one value for DCP."""
    ways = [""]
    while ways:
        path = ways.pop()
        if is_taken_apart(path, manifest.containers, manifest.entries):
            ways += _children(path, manifest.containers[path])
        elif path in manifest.containers:
            yield path


def _is_tensor(path: str, containers: Mapping[str, Container], leaves: Mapping[str, object]) -> bool:
    leaf = leaves.get(path)
    if isinstance(leaf, TensorLeaf | TensorEntry):
        return leaf.library == "torch"
    return path in containers and containers[path].kind in COMPOSITES


def _children(path: str, container: Container) -> list[str]:
    return [join(path, segment(key)) for key in container.keys]


def _container(keys: KeyPath, held: KeyPath) -> Container:
    numbers = [key for key in held if isinstance(key, int)]
    if not numbers:
        return Container("dict", held)
    if sorted(numbers) != list(range(len(held))):
        raise StateError(f"{'.'.join(map(str, keys))!r} is a list of which the ranks of this save have a part only")
    return Container("list", tuple(range(len(held))))


def _keys(path: str, containers: Mapping[str, Container]) -> KeyPath:
    keys: list[str | int] = []
    above = ""
    for part in split(path):
        key = decode(parse(part), path)
        in_sequence = above in containers and containers[above].kind in _SEQUENCES
        keys.append(key if in_sequence and isinstance(key, int) else str(key))
        above = join(above, part)
    return tuple(keys)
