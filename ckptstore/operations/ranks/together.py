"""One commit of the states that several ranks have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

from ckptstore.catalog.records import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance
from ckptstore.operations.address import check_name, check_step
from ckptstore.operations.ranks.gathering import Gathering, check_same
from ckptstore.operations.ranks.merging import Merging
from ckptstore.operations.ranks.outlines import Assignment, RankState
from ckptstore.operations.ranks.ranks import Ranks
from ckptstore.operations.ranks.reports import Opening, Report
from ckptstore.operations.ranks.wishes import Wish
from ckptstore.operations.ranks.writing import Held, write_share


def commit_together(chunks: ChunkStore, ranks: Ranks, wish: Wish, measure: Callable[[int], Advance]) -> CommitRecord:
    """Store what is new of all states and make one commit of them exist; called by all ranks.

    `measure` is given the bytes of this rank's arrays, and what it returns gets how many of them are done with.
    Raises as `commit.commit` does, or RankFailed for what another rank raised.
    """
    merging = Merging()
    state = RankState(chunks, ranks.rank, wish.flatten, measure, ranks.members)

    def describe() -> tuple[Opening, list[bytes]]:
        run, step = check_name("run", wish.run), check_step(wish.step)
        return Opening(chunks.config.id, run, step, (), 0), state.outlines()

    def assign(descriptions: list[tuple[Opening, list[bytes]]]) -> list[tuple[Opening, Assignment]]:
        openings = [opening for opening, _ in descriptions]
        check_same(openings)
        return list(zip(openings, merging.assign([outlines for _, outlines in descriptions]), strict=True))

    place, assigned = ranks.agree(describe, assign)
    if assigned.copied:
        common = ranks.agree(partial(state.copied, assigned.copied), merging.settle)
        assigned = assigned._replace(common=common)
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

    def publish(reports: list[Report]) -> list[CommitRecord]:
        assert gathering is not None
        return [gathering.publish(reports, merging.manifest)] * ranks.count

    return ranks.agree(checked, publish)
