"""DTensors of one path on several meshes, each of which has the whole tensor: copies along a dim that no mesh knows.

FSDP2 has them of what a plan of tensor parallelism leaves out, and so has composable `replicate` of what such a plan
divides. They are stored once, if all are the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ckptstore.errors import StateError
from ckptstore.operations.ranks.differences import STAGES
from ckptstore.operations.ranks.outlines import Boxes, Copied, Leaf

_ADVICE = (
    "copies that drifted apart, or are divided in other ways, can be committed with process_group= of the ranks of one "
    "mesh, from which all can check out, or be saved through DCP with StoreWriter of ckptstore.integrations.dcp; "
    f"{STAGES}"
)


def meshes_of(held: Iterable[tuple[Leaf, Sequence[int]]]) -> list[list[int]]:
    """The ranks that have parts of a tensor, by mesh."""
    meshes: dict[int, list[int]] = defaultdict(list)
    for leaf, ranks in held:
        meshes[leaf.members].extend(ranks)
    return [sorted(ranks) for ranks in meshes.values()]


def holders_by_part(path: str, meshes: Sequence[Sequence[int]], copied: Mapping[int, Copied]) -> Iterator[list[int]]:
    """Of each part of it, the ranks that have that; `copied` is by rank.

    Raises StateError for parts that are not all the same, or of which meshes have other ones.
    """
    _check_division(path, [_first_holders(ranks, copied) for ranks in meshes])
    parts: dict[Boxes, list[int]] = defaultdict(list)
    for rank, held in sorted(copied.items()):
        if held.boxes:
            parts[held.boxes].append(rank)
    for first, *others in parts.values():
        for rank in others:
            if copied[rank].digest != copied[first].digest:
                raise StateError(f"{path!r}: ranks {first} and {rank} have other elements of one part: {_ADVICE}")
        yield [first, *others]


def _first_holders(ranks: Sequence[int], copied: Mapping[int, Copied]) -> dict[Boxes, int]:
    """Of each part that these have."""
    return {copied[rank].boxes: rank for rank in reversed(ranks) if copied[rank].boxes}


def _check_division(path: str, meshes: Sequence[Mapping[Boxes, int]]) -> None:
    """Raises StateError unless one mesh has all parts that any mesh has."""
    whole = max(meshes, key=len)
    strange = [rank for held in meshes for boxes, rank in held.items() if boxes not in whole]
    if strange:
        first, second = sorted((min(strange), min(whole.values())))
        problem = f"ranks {first} and {second} are on meshes that divide it in other ways"
        raise StateError(f"{path!r}: {problem}: {_ADVICE}")
