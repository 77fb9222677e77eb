"""One commit of the states that several ranks have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial

from ckptstore.catalog.records import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance
from ckptstore.operations.address import check_name, check_step
from ckptstore.operations.history import Draft
from ckptstore.operations.paths import as_globs
from ckptstore.operations.ranks.as_one import as_one
from ckptstore.operations.ranks.gathering import Gathering, check_same
from ckptstore.operations.ranks.merging import Merging
from ckptstore.operations.ranks.outlines import Assignment, RankState
from ckptstore.operations.ranks.ranks import Ranks
from ckptstore.operations.ranks.reports import Opening, Report
from ckptstore.operations.ranks.writing import Held, write_share
from ckptstore.state.tree import Flat, flatten


@dataclass(frozen=True, slots=True)
class Wish:
    """What a rank is asked to commit.

    Attributes:
        run, step: the address, which is checked here; the same on all ranks.
        flatten: gives its state; see `flattened`.
        draft: called by the coordinator alone.
    """

    run: object
    step: object
    flatten: Callable[[], Flat]
    draft: Callable[[], Draft]


def flattened(
    app_state: Mapping[str, object],
    own: Sequence[Mapping[str, object]] = (),
    *,
    allow_pickle: bool,
    replicated: object = None,
) -> Flat:
    """A rank's state, of which globs choose what is `Flat.replicated`; or what several have, and by rank each's `own`.

    Raises InvalidArgument for what are no globs, and as `flatten` does.
    """
    globs = as_globs(replicated, "replicated") or ()
    flat = flatten(app_state, allow_pickle=allow_pickle, replicated=globs)
    return as_one(flat, [flatten(each, allow_pickle=allow_pickle) for each in own]) if own else flat


def commit_together(chunks: ChunkStore, ranks: Ranks, wish: Wish, measure: Callable[[int], Advance]) -> CommitRecord:
    """Store what is new of all states and make one commit of them exist; called by all ranks.

    `measure` is given the bytes of this rank's arrays, and what it returns is told how many of them are done with.
    Raises as `commit.commit` does, or RankFailed for what another rank raised.
    """
    merging = Merging()
    state = RankState(chunks, ranks.rank, wish.flatten, measure, ranks.members)

    def tell() -> tuple[Opening, list[bytes]]:
        run, step = check_name("run", wish.run), check_step(wish.step)
        return Opening(chunks.config.id, run, step, (), 0), state.outlines()

    def assign(told: list[tuple[Opening, list[bytes]]]) -> list[tuple[Opening, Assignment]]:
        openings = [opening for opening, _ in told]
        check_same(openings)
        return list(zip(openings, merging.assign([outlines for _, outlines in told]), strict=True))

    place, assigned = ranks.agree(tell, assign)
    gathering = Gathering(chunks, wish.draft) if ranks.is_coordinator else None
    parts = state.parts(assigned)
    names = {part.shard.path: part.shard.path for part in parts}
    counting = state.counting(assigned, parts)
    held = Held(lambda: chunks, place.run, place.step, parts, partial(state.values, assigned), names, counting)
    with gathering or nullcontext():
        report = write_share(ranks, gathering, held)

    def checked() -> Report:
        state.check()
        return report

    def publish(told: list[Report]) -> list[CommitRecord]:
        assert gathering is not None
        return [gathering.publish(told, merging.manifest)] * ranks.count

    return ranks.agree(checked, publish)
