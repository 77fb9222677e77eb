"""One state of what several ranks have: what is the same wherever it is at all stands once, the rest by rank.

What a rank has for itself stands beneath its number, as `3/rng/torch`; no name of an app state is a number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from msgspec.structs import replace

from ckptstore.errors import StateError
from ckptstore.format.grid import Division
from ckptstore.format.manifest import Container, Entry, Manifest
from ckptstore.operations.outlines import Assignment, Leaf, Outline, Undigested, is_within, root_of
from ckptstore.operations.reports import Report
from ckptstore.operations.written import tensor_entry, value_entry
from ckptstore.state.paths import join, segment

_MAPPINGS = frozenset({"dict", "OrderedDict", "defaultdict", "Counter"})
_WANTED: Mapping[bytes | Undigested, str] = {
    Undigested.SHARDED: "parts of one tensor, and the same around it",
    Undigested.REPLICATED: "the same replicated=, without it unless it and what is around it is the same on all",
}


class Merging:
    """Of the outlines of all ranks: `assign` takes them, `manifest` is called when all is written."""

    def __init__(self) -> None:
        self._outlines: Sequence[Outline] = ()
        self._own: frozenset[str] = frozenset()

    def assign(self, outlines: Sequence[Outline]) -> list[Assignment]:
        """What each rank writes, so that all have as much to do as may be.

        Raises StateError for DTensors of one path that are not parts of one tensor, and for what some rank takes for
        replicated, but cannot be.
        """
        self._outlines = outlines
        holders = _holders(outlines)
        differing = _differing(holders)
        self._own = frozenset(differing)
        writers = _Writers(outlines)
        for path, held in holders.items():
            leaves = {rank: what for rank, what in held.items() if isinstance(what, Leaf)}
            kinds = {leaf.digest for leaf in leaves.values() if isinstance(leaf.digest, Undigested)}
            if kinds:
                _check_undigested(path, leaves, differing)
            if leaves and Undigested.SHARDED not in kinds and not is_within(path, self._own):
                writers.choose(path, leaves)
        return [Assignment(self._own, frozenset(paths)) for paths in writers.paths]

    def manifest(self, written: Report, division: Division) -> Manifest:
        """Raises StateError for what nobody wrote."""
        forms: dict[str, Leaf] = {}
        containers: dict[str, Container] = {}
        for path, leaf in self._leaves():
            forms.setdefault(path, leaf)
        for path, container in self._containers():
            containers[path] = _joined(containers.get(path, container), container)
        entries: dict[str, Entry] = {
            path: value_entry(path, written, division.most)
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


class _Difference(NamedTuple):
    """Of two ranks, at a path."""

    path: str
    first: int
    second: int


class _Writers:
    """Who writes what is stored once: of those that have it the rank with the least to do; what is tied, the same one.

    Attributes:
        paths: by rank.
    """

    def __init__(self, outlines: Sequence[Outline]) -> None:
        self.paths = [set[str]() for _ in outlines]
        self._loads = [0] * len(outlines)
        self._tied = {path: group[0] for outline in outlines for group in outline.aliases for path in group}
        self._known: dict[str, int] = {}

    def choose(self, path: str, leaves: Mapping[int, Leaf]) -> None:
        first = self._tied.get(path, path)
        writer = self._known.get(first)
        if writer is None or writer not in leaves:
            writer = min(leaves, key=lambda rank: (self._loads[rank], rank))
        self._known.setdefault(first, writer)
        self._loads[writer] += leaves[writer].size
        self.paths[writer].add(path)


def _holders(outlines: Sequence[Outline]) -> dict[str, dict[int, Leaf | Container]]:
    """Path → rank → what it has there, in the order of the states."""
    holders: dict[str, dict[int, Leaf | Container]] = defaultdict(dict)
    for rank, outline in enumerate(outlines):
        for path, leaf in outline.leaves.items():
            holders[path][rank] = leaf
        for path, container in outline.containers.items():
            holders[path][rank] = container
    return holders


def _differing(holders: Mapping[str, Mapping[int, Leaf | Container]]) -> dict[str, _Difference]:
    """Where ranks differ; what only a mapping can lack makes all of its container differ."""
    roots: dict[str, _Difference] = {}
    for path, held in holders.items():
        found = _difference(path, held)
        if found is not None:
            root = path
            while not _is_mapping(holders.get(above := root.rpartition("/")[0], {})):
                root = above
            roots.setdefault(root, found)
    return roots


def _difference(path: str, held: Mapping[int, Leaf | Container]) -> _Difference | None:
    (first, what), *others = held.items()
    wanted = _compared(what)
    return next((_Difference(path, first, rank) for rank, other in others if _compared(other) != wanted), None)


def _compared(what: Leaf | Container) -> Any:
    """What must be the same on all ranks; of what has no digest, more is told later, as an error."""
    if isinstance(what, Leaf):
        return what.digest if isinstance(what.digest, Undigested) else what
    return replace(what, keys=()) if what.kind in _MAPPINGS else what


def _is_mapping(held: Mapping[int, Leaf | Container]) -> bool:
    return all(isinstance(what, Container) and what.kind in _MAPPINGS for what in held.values())


def _check_undigested(path: str, held: Mapping[int, Leaf], differing: Mapping[str, _Difference]) -> None:
    """Of a leaf that some rank has no digest of."""
    first, leaf = next((rank, leaf) for rank, leaf in held.items() if isinstance(leaf.digest, Undigested))
    for rank, other in held.items():
        if other.form != leaf.form or other.digest is not leaf.digest:
            told = f"rank {first} has {_told(leaf)}, rank {rank} {_told(other)}"
            raise StateError(f"{path!r}: {told}: give all ranks {_WANTED[leaf.digest]}")
    if root := root_of(path, differing):
        where, one, another = differing[root]
        told = f"{_told(leaf)} in {root!r}, which is each rank's own, as ranks {one} and {another} differ in {where!r}"
        raise StateError(f"{path!r}: {told}: give all ranks {_WANTED[leaf.digest]}")


def _told(leaf: Leaf) -> str:
    """All that must be the same on all ranks."""
    kind = f"{leaf.digest.value} " if isinstance(leaf.digest, Undigested) else ""
    form = leaf.form
    if form is None:
        return f"{kind}plain value"
    more = {"order": form.order, "requires_grad": form.requires_grad, "parameter": form.parameter}
    traits = "".join(f", {name}={value}" for name, value in more.items() if value)
    return f"{kind}{form.library} {form.dtype}{list(form.shape)}{traits}"


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
