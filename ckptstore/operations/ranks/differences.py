"""Where the states of several ranks differ, so that what stands there is each rank's own."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from ckptstore.errors import StateError
from ckptstore.format.manifest import MAPPINGS, Container
from ckptstore.operations.ranks.outlines import Leaf, Outline, Undigested
from ckptstore.operations.ranks.uniting import joined
from ckptstore.state.paths import root_of

_KIND = {Undigested.SHARDED: "a part of", Undigested.REPLICATED: "replicated", Undigested.BROADCAST: "broadcast"}
STAGES = (
    "what stages of a pipeline have needs names that differ, as {'optim.stage0': …}, or those of DCP's named state "
    "dicts"
)
_WANTED: Mapping[bytes | Undigested, str] = {
    Undigested.SHARDED: f"parts of one tensor, and the same around it; {STAGES}",
    Undigested.BROADCAST: "the same DistributedDataParallel",
    Undigested.REPLICATED: "the same replicated=, without it unless it and what is around it is the same on all",
}


class SharedOutline(NamedTuple):
    """An outline, and the ranks of which it is one."""

    outline: Outline
    ranks: Sequence[int]


class Holding(NamedTuple):
    """What there is at a path, and the ranks that have it."""

    what: Leaf | Container
    ranks: Sequence[int]


class Difference(NamedTuple):
    """Of two ranks, at a path."""

    path: str
    first: int
    second: int


def distinct(outlines: Sequence[Sequence[bytes]]) -> list[SharedOutline]:
    """Every outline once, in the order of the states; given encoded, by rank."""
    ranks: dict[bytes, list[int]] = defaultdict(list)
    for rank, of_rank in enumerate(outlines):
        for outline in of_rank:
            ranks[outline].append(rank)
    decode = msgspec.msgpack.Decoder(Outline).decode
    return [SharedOutline(decode(outline), held) for outline, held in ranks.items()]


def holders_of(outlines: Sequence[SharedOutline]) -> dict[str, list[Holding]]:
    """Path → what ranks have there, that of the first rank first."""
    holders: dict[str, list[Holding]] = defaultdict(list)
    for outline, ranks in outlines:
        all_of_it: dict[str, Leaf | Container] = {**outline.leaves, **outline.containers}
        for path, what in all_of_it.items():
            holders[path].append(Holding(what, ranks))
    return holders


def differences(
    holders: Mapping[str, Sequence[Holding]], outlines: Sequence[SharedOutline], count: int
) -> dict[str, Difference]:
    """Path → how the ranks, `count` of them, differ there.

    What only a mapping can lack makes all of its container differ.
    """
    lacking = _lacking(holders, outlines, count)
    roots: dict[str, Difference] = {}
    for path, held in holders.items():
        found = _difference(path, held) or lacking.get(path)
        if found is not None:
            root = path
            while not _are_mappings(holders.get(outer := root.rpartition("/")[0], ())):
                root = outer
            roots.setdefault(root, found)
    return roots


def check_undigested(
    path: str, held: Sequence[tuple[Leaf, Sequence[int]]], differing: Mapping[str, Difference]
) -> None:
    """Raises StateError for a leaf that some rank has no digest of, unless all agree on what it is."""
    leaf, (first, *_) = next(each for each in held if isinstance(each[0].digest, Undigested))
    for other, (rank, *_) in held:
        if (other.form, other.digest) != (leaf.form, leaf.digest):
            problem = f"{path!r}: rank {first} has {_name(leaf)}, rank {rank} {_name(other)}"
            raise StateError(f"{problem}: give all ranks {_WANTED[leaf.digest]}")
    if root := root_of(path, differing):
        where, one, two = differing[root]
        problem = f"{_name(leaf)} in {root!r}, which is each rank's own, as ranks {one} and {two} differ in {where!r}"
        raise StateError(f"{path!r}: {problem}: give all ranks {_WANTED[leaf.digest]}")


def above(roots: frozenset[str], *, itself: bool = False) -> frozenset[str]:
    """Paths of all containers on the way to these, which are among them if asked for."""
    found = set(roots) if itself else set[str]()
    for path in roots:
        while path:
            path = path.rpartition("/")[0]  # noqa: PLW2901 - the way up
            found.add(path)
    return frozenset(found)


def _lacking(
    holders: Mapping[str, Sequence[Holding]], outlines: Sequence[SharedOutline], count: int
) -> dict[str, Difference]:
    """What only some have of an object that gets its state whole: the others must not get it.

    But for parts of tensors and what is replicated, and what is around them.
    """
    having: dict[str, set[int]] = defaultdict(set)
    for outline, ranks in outlines:
        for root in outline.free:
            having[root].update(ranks)
    shared = above(frozenset(path for path, held in holders.items() if any(map(_is_undigested, held))), itself=True)
    found: dict[str, Difference] = {}
    for path, held in holders.items():
        root = root_of(path, having) if sum(len(each.ranks) for each in held) < count else ""
        if root in {"", path} or path in shared or _lacked(holders, path.rpartition("/")[0], having[root]):
            continue
        if lacking := _lacked(holders, path, having[root]):
            found[path] = Difference(path, held[0].ranks[0], min(lacking))
    return found


def _lacked(holders: Mapping[str, Sequence[Holding]], path: str, ranks: AbstractSet[int]) -> set[int]:
    """Those of the ranks that have nothing there."""
    return set(ranks).difference(*(held.ranks for held in holders.get(path, ())))


def _is_undigested(held: Holding) -> bool:
    return isinstance(held.what, Leaf) and isinstance(held.what.digest, Undigested)


def _difference(path: str, held: Sequence[Holding]) -> Difference | None:
    first, *others = held
    known = _compared(first.what)
    for other in others:
        try:
            known = _agreed(known, _compared(other.what))
        except ValueError:
            return Difference(path, first.ranks[0], other.ranks[0])
    return None


def _compared(what: Leaf | Container) -> Any:
    """What must be the same on all ranks; of what has no digest, more is reported later, as an error."""
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


def _are_mappings(held: Sequence[Holding]) -> bool:
    return all(_is_mapping(each.what) for each in held)


def _is_number(key: object) -> bool:
    """Whether it may be equal to a key of another type, as 1 is to True: one dict cannot hold both."""
    return isinstance(key, int | float)


def _is_mapping(what: object) -> bool:
    return isinstance(what, Container) and what.kind in MAPPINGS


def _name(leaf: Leaf) -> str:
    """All that must be the same on all ranks."""
    kind = f"{_KIND[leaf.digest]} " if isinstance(leaf.digest, Undigested) else ""
    form = leaf.form
    if form is None:
        return f"{kind}plain value"
    more = {"order": form.order, "requires_grad": form.requires_grad, "parameter": form.parameter}
    traits = "".join(f", {name}={value}" for name, value in more.items() if value)
    return f"{kind}{form.library} {form.dtype}{list(form.shape)}{traits}"
