"""One state of what several ranks have: what is the same wherever it is at all stands once, the rest by rank.

What a rank has for itself stands beneath its number, as `3/rng/torch`; no name of an app state is a number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from ckptstore.errors import StateError
from ckptstore.format.manifest import Container, Entry, Manifest
from ckptstore.operations.outlines import Assignment, Leaf, Outline, is_within
from ckptstore.operations.reports import Report
from ckptstore.operations.written import tensor_entry, value_entry
from ckptstore.state.paths import join, segment

_MAPPINGS = frozenset({"dict", "OrderedDict", "defaultdict", "Counter"})


class Merging:
    """Of the outlines of all ranks: `assign` takes them, `manifest` is called when all is written."""

    def __init__(self) -> None:
        self._outlines: Sequence[Outline] = ()
        self._own: frozenset[str] = frozenset()

    def assign(self, outlines: Sequence[Outline]) -> list[Assignment]:
        """What each rank writes, so that all have as much to do as may be.

        Raises StateError for DTensors of one path that are not parts of one tensor.
        """
        self._outlines = outlines
        holders = _holders(outlines)
        self._own = _own_roots(holders)
        loads, common = [0] * len(outlines), [set[str]() for _ in outlines]
        for path, held in holders.items():
            leaves = {rank: what for rank, what in held.items() if isinstance(what, Leaf)}
            if any(leaf.is_sharded for leaf in leaves.values()):
                _check_sharded(path, leaves, self._own)
            elif leaves and not is_within(path, self._own):
                writer = min(leaves, key=lambda rank: (loads[rank], rank))
                loads[writer] += leaves[writer].size
                common[writer].add(path)
        return [Assignment(self._own, frozenset(paths)) for paths in common]

    def manifest(self, written: Report, chunk_bytes: int) -> Manifest:
        """Raises StateError for what nobody wrote."""
        forms: dict[str, Leaf] = {}
        containers: dict[str, Container] = {}
        for path, leaf in self._leaves():
            forms.setdefault(path, leaf)
        for path, container in self._containers():
            containers[path] = _joined(containers.get(path, container), container)
        entries: dict[str, Entry] = {
            path: value_entry(path, written, chunk_bytes)
            if leaf.form is None
            else tensor_entry(path, leaf.form, written)
            for path, leaf in forms.items()
        }
        return Manifest(entries, containers, tuple(self._ties(entries)))

    def _leaves(self) -> Iterator[tuple[str, Leaf]]:
        for rank, outline in enumerate(self._outlines):
            yield from ((self._place(rank, path), leaf) for path, leaf in outline.leaves.items())

    def _containers(self) -> Iterator[tuple[str, Container]]:
        above = _above(self._own)
        for rank, outline in enumerate(self._outlines):
            for path, container in outline.containers.items():
                yield self._place(rank, path), container
                if path in above:
                    held = (key for key in container.keys if self._is_on_the_way(join(path, segment(key)), above))
                    yield join(str(rank), path), replace(container, keys=tuple(held))
        if self._own:
            yield "", Container("dict", tuple(range(len(self._outlines))))

    def _is_on_the_way(self, path: str, above: frozenset[str]) -> bool:
        return path in above or path in self._own

    def _ties(self, entries: Mapping[str, Entry]) -> Iterator[tuple[str, ...]]:
        """Of what any rank has tied; ranks that have no element of it cannot tell."""
        tied: set[str] = set()
        for rank, outline in enumerate(self._outlines):
            for group in outline.aliases:
                paths = [self._place(rank, path) for path in group]
                same = tuple(path for path in paths if path not in tied and entries[path] == entries[paths[0]])
                if len(same) > 1:
                    tied.update(same)
                    yield same

    def _place(self, rank: int, path: str) -> str:
        return join(str(rank), path) if is_within(path, self._own) else path


def _holders(outlines: Sequence[Outline]) -> dict[str, dict[int, Leaf | Container]]:
    """Path → rank → what it has there, in the order of the states."""
    holders: dict[str, dict[int, Leaf | Container]] = defaultdict(dict)
    for rank, outline in enumerate(outlines):
        for path, leaf in outline.leaves.items():
            holders[path][rank] = leaf
        for path, container in outline.containers.items():
            holders[path][rank] = container
    return holders


def _own_roots(holders: Mapping[str, Mapping[int, Leaf | Container]]) -> frozenset[str]:
    """Where ranks differ; what only a mapping can lack makes all of its container differ."""
    roots: set[str] = set()
    for path, held in holders.items():
        first, *others = map(_compared, held.values())
        if any(other != first for other in others):
            root = path
            while not _is_mapping(holders.get(above := root.rpartition("/")[0], {})):
                root = above
            roots.add(root)
    return frozenset(roots)


def _compared(what: Leaf | Container) -> Any:
    """What must be the same on all ranks; shards of other tensors are told later, as an error."""
    if isinstance(what, Leaf):
        return "shard" if what.is_sharded else what
    return replace(what, keys=()) if what.kind in _MAPPINGS else what


def _is_mapping(held: Mapping[int, Leaf | Container]) -> bool:
    return all(isinstance(what, Container) and what.kind in _MAPPINGS for what in held.values())


def _check_sharded(path: str, held: Mapping[int, Leaf], own: frozenset[str]) -> None:
    if is_within(path, own):
        raise StateError(f"{path!r}: a DTensor in what ranks have each for itself: give all ranks the same around it")
    (first, leaf), *others = held.items()
    for rank, other in others:
        if other.form != leaf.form:
            told = f"rank {first} has a part of {_form(leaf)}, rank {rank} one of {_form(other)}"
            raise StateError(f"{path!r}: {told}: give all ranks parts of one tensor")


def _form(leaf: Leaf) -> str:
    assert leaf.form is not None
    return f"{leaf.form.dtype}{list(leaf.form.shape)}"


def _above(roots: frozenset[str]) -> frozenset[str]:
    """Paths of all containers on the way to these."""
    found: set[str] = set()
    for path in roots:
        while path:
            path = path.rpartition("/")[0]  # noqa: PLW2901 - the way up
            found.add(path)
    return frozenset(found)


def _joined(known: Container, other: Container) -> Container:
    if known.kind not in _MAPPINGS:
        return known
    return replace(known, keys=tuple(dict.fromkeys([*known.keys, *other.keys])))
