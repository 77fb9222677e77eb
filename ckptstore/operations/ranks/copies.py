"""DTensors of one path on several meshes, each of which has the whole tensor: copies along a dim that no mesh knows.

Tensor parallel models under DDP have them, and so has FSDP2 what a plan of tensor parallelism leaves out. Ranks of one
mesh store them, if the others have the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from zlib import crc32

from ckptstore.errors import StateError
from ckptstore.operations.ranks.differences import STAGES
from ckptstore.operations.ranks.outlines import Copied, Leaf

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


def idle_ranks(path: str, meshes: Sequence[Sequence[int]], copied: Mapping[int, Copied]) -> Iterator[int]:
    """Those of the meshes that store nothing of it, which take turns by path; what they have is given by rank.

    Raises StateError unless all meshes have the same elements at the same places.
    """
    first, *others = meshes
    known = {copied[rank].boxes: rank for rank in reversed(first)}
    for ranks in others:
        if {copied[rank].boxes for rank in ranks} != known.keys():
            raise _misfit(path, first[0], ranks[0], "and is divided in another way")
        for rank in ranks:
            like = known[copied[rank].boxes]
            if copied[rank].digest != copied[like].digest:
                raise _misfit(path, like, rank, "and has other elements")
    chosen = crc32(path.encode()) % len(meshes)
    return (rank for number, ranks in enumerate(meshes) if number != chosen for rank in ranks)


def _misfit(path: str, one: int, other: int, problem: str) -> StateError:
    held = f"rank {one} has a part of it, rank {other} one that is on a mesh of other ranks"
    return StateError(f"{path!r}: {held} {problem}: {_ADVICE}")
