"""One state of what several ranks have: what is the same wherever it is at all stands once, the rest by rank.

What a rank has for itself stands beneath its number, as `3/rng/torch`; no name of an app state is a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from ckptstore.format.grid import Division
from ckptstore.format.manifest import Container, Entry, Manifest
from ckptstore.operations.ranks.copies import holders_by_part, meshes_of
from ckptstore.operations.ranks.differences import (
    SharedOutline,
    above,
    check_undigested,
    differences,
    distinct,
    holders_of,
)
from ckptstore.operations.ranks.outlines import Assignment, Copied, Leaf, Undigested
from ckptstore.operations.ranks.reports import Report
from ckptstore.operations.ranks.uniting import joined
from ckptstore.operations.ranks.written import tensor_entry, value_entry
from ckptstore.state.paths import is_within, join, segment


class Merging:
    """Of the outlines of all ranks: `assign` takes them, `settle` says who writes that of which several meshes have
    copies, `manifest` is called when all is written.
    """

    def __init__(self) -> None:
        self._count = 0
        self._outlines: Sequence[SharedOutline] = ()
        self._own: frozenset[str] = frozenset()
        self._copied: dict[str, list[list[int]]] = {}
        self._writers = _Writers(0, ())

    def assign(self, outlines: Sequence[Sequence[bytes]]) -> list[Assignment]:
        """What each rank writes, so that all have as much to do as may be; `outlines` are encoded, by rank.

        Raises StateError for DTensors of one path that are not parts of one tensor, and for what some rank takes for
        replicated, but cannot be.
        """
        self._count = len(outlines)
        self._outlines = distinct(outlines)
        holders = holders_of(self._outlines)
        differing = differences(holders, self._outlines, self._count)
        self._own = frozenset(differing)
        self._writers = _Writers(self._count, self._outlines)
        for path, held in holders.items():
            leaves = [(each.what, each.ranks) for each in held if isinstance(each.what, Leaf)]
            kinds = {leaf.digest for leaf, _ in leaves if isinstance(leaf.digest, Undigested)}
            if kinds:
                check_undigested(path, leaves, differing)
            if Undigested.SHARDED in kinds and len(meshes := meshes_of(leaves)) > 1:
                self._copied[path] = meshes
            if leaves and Undigested.SHARDED not in kinds and not is_within(path, self._own):
                ranks = sorted(rank for _, ranks in leaves for rank in ranks)
                self._writers.choose(path, leaves[0][0].size, ranks[:1] if Undigested.BROADCAST in kinds else ranks)
        return [Assignment(self._own, common, frozenset(self._copied)) for common in self._writers.common()]

    def settle(self, copied: Sequence[Mapping[str, Copied]]) -> list[frozenset[str]]:
        """What is common of each rank's assignment, given what each has of what is copied.

        Raises StateError for what is not the same wherever it is.
        """
        for path, meshes in self._copied.items():
            held = {rank: copied[rank][path] for ranks in meshes for rank in ranks}
            for holders in holders_by_part(path, meshes, held):
                self._writers.choose(path, held[holders[0]].size, holders)
        return self._writers.common()

    def manifest(self, written: Report, division: Division) -> Manifest:
        """Raises StateError for what nobody wrote."""
        forms: dict[str, Leaf] = {}
        containers: dict[str, Container] = {}
        for path, leaf in self._leaves():
            forms.setdefault(path, leaf)
        for path, container in self._containers():
            containers[path] = joined(containers.get(path, container), container)
        entries: dict[str, Entry] = {
            path: value_entry(path, written, division.most)
            if leaf.form is None
            else tensor_entry(path, leaf.form, written)
            for path, leaf in forms.items()
        }
        return Manifest(entries, containers, tuple(self._ties(entries)))

    def _leaves(self) -> Iterator[tuple[str, Leaf]]:
        for outline, ranks in self._outlines:
            for path, leaf in outline.leaves.items():
                yield from ((place, leaf) for place in self._places(ranks, path))

    def _containers(self) -> Iterator[tuple[str, Container]]:
        around = above(self._own)
        for outline, ranks in self._outlines:
            for path, container in outline.containers.items():
                yield from ((place, container) for place in self._places(ranks, path))
                if path in around:
                    held = (key for key in container.keys if self._is_on_the_way(join(path, segment(key)), around))
                    own = replace(container, keys=tuple(held))
                    yield from ((join(str(rank), path), own) for rank in ranks)
        if self._own:
            yield "", Container("dict", tuple(range(self._count)))

    def _is_on_the_way(self, path: str, around: frozenset[str]) -> bool:
        return path in around or path in self._own

    def _ties(self, entries: Mapping[str, Entry]) -> Iterator[tuple[str, ...]]:
        """Of what any rank has tied; ranks that have no element of it cannot know."""
        tied: set[str] = set()
        groups = ((group, ranks) for outline, ranks in self._outlines for group in outline.aliases)
        for group, ranks in groups:
            places = [self._places(ranks, path) for path in group]
            for turn in range(max(map(len, places))):
                paths = [each[turn % len(each)] for each in places]
                same = tuple(path for path in paths if path not in tied and entries[path] == entries[paths[0]])
                if len(same) > 1:
                    tied.update(same)
                    yield same

    def _places(self, ranks: Sequence[int], path: str) -> list[str]:
        return [join(str(rank), path) for rank in ranks] if is_within(path, self._own) else [path]


class _Writers:
    """Who writes what is stored once: of those that have it the rank with the least to do; of what is tied the same."""

    def __init__(self, count: int, outlines: Sequence[SharedOutline]) -> None:
        self._paths = [set[str]() for _ in range(count)]
        self._loads = [0] * count
        self._tied = {path: group[0] for outline, _ in outlines for group in outline.aliases for path in group}
        self._known: dict[str, int] = {}

    def choose(self, path: str, size: int, ranks: Sequence[int]) -> None:
        first = self._tied.get(path, path)
        writer = self._known.get(first)
        if writer is None or writer not in ranks:
            writer = min(ranks, key=self._loads.__getitem__)
        self._known.setdefault(first, writer)
        self._loads[writer] += size
        self._paths[writer].add(path)

    def common(self) -> list[frozenset[str]]:
        """What each rank writes."""
        return [frozenset(paths) for paths in self._paths]
