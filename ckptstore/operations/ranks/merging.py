"""One state of what several ranks have: what is the same wherever it is at all stands once, the rest by rank.

What a rank has for itself stands beneath its number, as `3/rng/torch`; no name of an app state is a number.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ckptstore.errors import StateError
from ckptstore.format.grid import Division
from ckptstore.format.manifest import MAPPINGS, Container, Entry, Manifest
from ckptstore.operations.ranks.outlines import Assignment, Leaf, Outline, Undigested
from ckptstore.operations.ranks.reports import Report
from ckptstore.operations.ranks.uniting import united
from ckptstore.operations.ranks.written import tensor_entry, value_entry
from ckptstore.state.paths import is_within, join, root_of, segment

_KIND = {Undigested.SHARDED: "a part of", Undigested.REPLICATED: "replicated", Undigested.BROADCAST: "broadcast"}
_STAGES = (
    "what stages of a pipeline have needs names that differ, as {'optim.stage0': …}, or those of DCP's named state "
    "dicts"
)
_COPIES = (
    "on a mesh of other ranks: where these are copies, commit with process_group= of the ranks of one mesh, from which "
    f"all can check out, or save through DCP with StoreWriter of ckptstore.integrations.dcp; {_STAGES}"
)
_WANTED: Mapping[bytes | Undigested, str] = {
    Undigested.SHARDED: f"parts of one tensor, and the same around it; {_STAGES}",
    Undigested.BROADCAST: "the same DistributedDataParallel",
    Undigested.REPLICATED: "the same replicated=, without it unless it and what is around it is the same on all",
}


class _Told(NamedTuple):
    """An outline, and the ranks that told it."""

    outline: Outline
    ranks: Sequence[int]


class _Held(NamedTuple):
    """What there is at a path, and the ranks that have it."""

    what: Leaf | Container
    ranks: Sequence[int]


class Merging:
    """Of the outlines of all ranks: `assign` takes them, `manifest` is called when all is written."""

    def __init__(self) -> None:
        self._count = 0
        self._told: Sequence[_Told] = ()
        self._own: frozenset[str] = frozenset()

    def assign(self, outlines: Sequence[Sequence[bytes]]) -> list[Assignment]:
        """What each rank writes, so that all have as much to do as may be; `outlines` are encoded, by rank.

        Raises StateError for DTensors of one path that are not parts of one tensor, and for what some rank takes for
        replicated, but cannot be.
        """
        self._count = len(outlines)
        self._told = _told(outlines)
        holders = _holders(self._told)
        differing = _differing(holders, _lacking(holders, self._told, self._count))
        self._own = frozenset(differing)
        writers = _Writers(self._count, self._told)
        for path, held in holders.items():
            leaves = [(each.what, each.ranks) for each in held if isinstance(each.what, Leaf)]
            kinds = {leaf.digest for leaf, _ in leaves if isinstance(leaf.digest, Undigested)}
            if kinds:
                _check_undigested(path, leaves, differing)
            if leaves and Undigested.SHARDED not in kinds and not is_within(path, self._own):
                ranks = sorted(rank for _, ranks in leaves for rank in ranks)
                writers.choose(path, leaves[0][0].size, ranks[:1] if Undigested.BROADCAST in kinds else ranks)
        return [Assignment(self._own, frozenset(paths)) for paths in writers.paths]

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
        for outline, ranks in self._told:
            for path, leaf in outline.leaves.items():
                yield from ((place, leaf) for place in self._places(ranks, path))

    def _containers(self) -> Iterator[tuple[str, Container]]:
        above = _above(self._own)
        for outline, ranks in self._told:
            for path, container in outline.containers.items():
                yield from ((place, container) for place in self._places(ranks, path))
                if path in above:
                    held = (key for key in container.keys if self._is_on_the_way(join(path, segment(key)), above))
                    own = replace(container, keys=tuple(held))
                    yield from ((join(str(rank), path), own) for rank in ranks)
        if self._own:
            yield "", Container("dict", tuple(range(self._count)))

    def _is_on_the_way(self, path: str, above: frozenset[str]) -> bool:
        return path in above or path in self._own

    def _ties(self, entries: Mapping[str, Entry]) -> Iterator[tuple[str, ...]]:
        """Of what any rank has tied; ranks that have no element of it cannot tell."""
        tied: set[str] = set()
        groups = ((group, ranks) for outline, ranks in self._told for group in outline.aliases)
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


def joined(known: Container, other: Container) -> Container:
    """What two ranks have at one path, with the keys of both. Raises ValueError where they contradict each other."""
    if known.kind not in MAPPINGS:
        return known
    keys = {segment(key): key for key in (*known.keys, *other.keys)}
    return replace(known, keys=tuple(keys.values()), attributes=united(known.attributes, other.attributes))


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

    def __init__(self, count: int, told: Sequence[_Told]) -> None:
        self.paths = [set[str]() for _ in range(count)]
        self._loads = [0] * count
        self._tied = {path: group[0] for outline, _ in told for group in outline.aliases for path in group}
        self._known: dict[str, int] = {}

    def choose(self, path: str, size: int, ranks: Sequence[int]) -> None:
        first = self._tied.get(path, path)
        writer = self._known.get(first)
        if writer is None or writer not in ranks:
            writer = min(ranks, key=self._loads.__getitem__)
        self._known.setdefault(first, writer)
        self._loads[writer] += size
        self.paths[writer].add(path)


def _told(outlines: Sequence[Sequence[bytes]]) -> list[_Told]:
    """Every outline once, in the order of the states."""
    ranks: dict[bytes, list[int]] = defaultdict(list)
    for rank, told in enumerate(outlines):
        for outline in told:
            ranks[outline].append(rank)
    decode = msgspec.msgpack.Decoder(Outline).decode
    return [_Told(decode(outline), held) for outline, held in ranks.items()]


def _holders(told: Sequence[_Told]) -> dict[str, list[_Held]]:
    """Path → what ranks have there, that of the first rank first."""
    holders: dict[str, list[_Held]] = defaultdict(list)
    for outline, ranks in told:
        all_of_it: dict[str, Leaf | Container] = {**outline.leaves, **outline.containers}
        for path, what in all_of_it.items():
            holders[path].append(_Held(what, ranks))
    return holders


def _lacking(holders: Mapping[str, Sequence[_Held]], told: Sequence[_Told], count: int) -> dict[str, _Difference]:
    """What only some have of an object that gets its state whole: the others must not get it.

    But for parts of tensors and what is replicated, and what is around them.
    """
    having: dict[str, set[int]] = defaultdict(set)
    for outline, ranks in told:
        for root in outline.free:
            having[root].update(ranks)
    shared = _above(frozenset(path for path, held in holders.items() if any(map(_is_undigested, held))), itself=True)
    found: dict[str, _Difference] = {}
    for path, held in holders.items():
        root = root_of(path, having) if sum(len(each.ranks) for each in held) < count else ""
        if root in {"", path} or path in shared or _lacked(holders, path.rpartition("/")[0], having[root]):
            continue
        if lacking := _lacked(holders, path, having[root]):
            found[path] = _Difference(path, held[0].ranks[0], min(lacking))
    return found


def _lacked(holders: Mapping[str, Sequence[_Held]], path: str, ranks: AbstractSet[int]) -> set[int]:
    """Those of the ranks that have nothing there."""
    return set(ranks).difference(*(held.ranks for held in holders.get(path, ())))


def _is_undigested(held: _Held) -> bool:
    return isinstance(held.what, Leaf) and isinstance(held.what.digest, Undigested)


def _differing(holders: Mapping[str, Sequence[_Held]], lacking: Mapping[str, _Difference]) -> dict[str, _Difference]:
    """Where ranks differ; what only a mapping can lack makes all of its container differ."""
    roots: dict[str, _Difference] = {}
    for path, held in holders.items():
        found = _difference(path, held) or lacking.get(path)
        if found is not None:
            root = path
            while not _are_mappings(holders.get(above := root.rpartition("/")[0], ())):
                root = above
            roots.setdefault(root, found)
    return roots


def _difference(path: str, held: Sequence[_Held]) -> _Difference | None:
    first, *others = held
    known = _compared(first.what)
    for other in others:
        try:
            known = _agreed(known, _compared(other.what))
        except ValueError:
            return _Difference(path, first.ranks[0], other.ranks[0])
    return None


def _compared(what: Leaf | Container) -> Any:
    """What must be the same on all ranks; of what has no digest, more is told later, as an error."""
    if isinstance(what, Leaf):
        return what.digest if isinstance(what.digest, Undigested) else what
    return replace(what, keys=tuple(filter(_is_number, what.keys))) if _is_mapping(what) else what


def _agreed(known: Any, other: Any) -> Any:
    """What both say, see `_compared`. Raises ValueError when they are not the same."""
    if _is_mapping(known) and _is_mapping(other) and known.kind == other.kind:
        both = joined(known, other)
        if len(set(both.keys)) == len(both.keys):
            return both
    elif known == other:
        return known
    raise ValueError("they differ")


def _are_mappings(held: Sequence[_Held]) -> bool:
    return all(_is_mapping(each.what) for each in held)


def _is_number(key: object) -> bool:
    """Whether it may be equal to a key of another type, as 1 is to True: one dict cannot hold both."""
    return isinstance(key, int | float)


def _is_mapping(what: object) -> bool:
    return isinstance(what, Container) and what.kind in MAPPINGS


def _check_undigested(
    path: str, held: Sequence[tuple[Leaf, Sequence[int]]], differing: Mapping[str, _Difference]
) -> None:
    """Of a leaf that some rank has no digest of."""
    leaf, (first, *_) = next(each for each in held if isinstance(each[0].digest, Undigested))
    for other, (rank, *_) in held:
        if (other.form, other.digest, other.members) != (leaf.form, leaf.digest, leaf.members):
            told = f"{path!r}: rank {first} has {_name(leaf)}, rank {rank} {_name(other)}"
            alike = _name(other) == _name(leaf)
            raise StateError(f"{told} {_COPIES}" if alike else f"{told}: give all ranks {_WANTED[leaf.digest]}")
    if root := root_of(path, differing):
        where, one, another = differing[root]
        told = f"{_name(leaf)} in {root!r}, which is each rank's own, as ranks {one} and {another} differ in {where!r}"
        raise StateError(f"{path!r}: {told}: give all ranks {_WANTED[leaf.digest]}")


def _name(leaf: Leaf) -> str:
    """All that must be the same on all ranks."""
    kind = f"{_KIND[leaf.digest]} " if isinstance(leaf.digest, Undigested) else ""
    form = leaf.form
    if form is None:
        return f"{kind}plain value"
    more = {"order": form.order, "requires_grad": form.requires_grad, "parameter": form.parameter}
    traits = "".join(f", {name}={value}" for name, value in more.items() if value)
    return f"{kind}{form.library} {form.dtype}{list(form.shape)}{traits}"


def _above(roots: frozenset[str], *, itself: bool = False) -> frozenset[str]:
    """Paths of all containers on the way to these, which are among them if asked for."""
    found = set(roots) if itself else set[str]()
    for path in roots:
        while path:
            path = path.rpartition("/")[0]  # noqa: PLW2901 - the way up
            found.add(path)
    return frozenset(found)
