"""Every interleaving of committers, deletion, restoring, fencing, gc, rewriting and crashes, to find a lost commit.

A deleted commit can be restored until gc purges it, and each commit has a document beside its pack. The grace of any
deleted commit may be over, and any lease may run out, at any moment: the worst clocks.

One pack P0 holds a chunk X that commit M0 needs. Each committer wants X too: it finds it and pins its pack, or uploads
a pack of its own. A commit is lost when it exists, live or deleted, without its pack's or its document's object, or
when gc purges it while it is live.

A rewriter looks at who needs a pack, copies what they need into a pack of its own, and lets them need that instead;
the old pack is left to gc. A commit is lost, too, when it was made to need a pack that does not hold what it needs: one
that came after the rewriter had looked.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, combinations
from typing import NamedTuple

import pytest

from tests.protocol.searching import search

Step = tuple[str, "World"]


class World(NamedTuple):
    """All that catalog and storage hold, and where everybody stands."""

    commits: frozenset[tuple[str, str, str]]  # name, pack, "live" or "deleted"
    packs: frozenset[tuple[str, str, int]]  # name, state, the committer that reserved it
    objects: frozenset[str]  # in storage: packs, and documents by their commit's name
    documents: frozenset[tuple[str, int]]  # reserved and owned by no commit
    pins: frozenset[tuple[int, str]]
    sessions: tuple[str, ...]
    committers: tuple[tuple[str, str], ...]  # phase, pack
    rewriter: tuple[str, str, tuple[str, ...]]  # phase, the old pack, the commits that needed it
    gc: tuple[str, tuple[str, ...]]  # phase, what it took in the last step
    rounds: int
    lost: bool = False

    def state(self, pack: str) -> str:
        return next((state for name, state, _ in self.packs if name == pack), "none")

    def with_pack(self, pack: str, state: str, owner: int = -1) -> World:
        others = frozenset(found for found in self.packs if found[0] != pack)
        return self._replace(packs=others | {(pack, state, owner)})

    def at(self, number: int, phase: str, pack: str) -> World:
        moved = (*self.committers[:number], (phase, pack), *self.committers[number + 1 :])
        return self._replace(committers=moved)

    def session(self, number: int, state: str) -> World:
        return self._replace(sessions=(*self.sessions[:number], state, *self.sessions[number + 1 :]))

    def with_commit(self, name: str, pack: str, state: str) -> World:
        others = frozenset(found for found in self.commits if found[0] != name)
        return self._replace(commits=others | {(name, pack, state)})

    @property
    def has_lost(self) -> bool:
        return self.lost or any(not {name, pack} <= self.objects for name, pack, _ in self.commits)


def _start(committers: int, rounds: int, *, rewriting: bool) -> World:
    return World(
        commits=frozenset({("M0", "P0", "live")}),
        packs=frozenset({("P0", "live", -1)}),
        objects=frozenset({"P0", "M0"}),
        documents=frozenset(),
        pins=frozenset(),
        sessions=("open",) * (committers + 1),
        committers=(("start", ""),) * committers,
        rewriter=("start" if rewriting else "done", "", ()),
        gc=("idle", ()),
        rounds=rounds,
    )


def _user(world: World) -> Iterator[Step]:
    for name, pack, state in world.commits:
        other = "deleted" if state == "live" else "live"
        yield f"{name} becomes {other}", world.with_commit(name, pack, other)


def _committer(world: World, number: int, variant: str) -> Iterator[Step]:
    phase, pack = world.committers[number]
    name, is_open = f"M{number + 1}", world.sessions[number] == "open"
    if phase == "start" and is_open:
        hits = sorted(found for found, state, _ in world.packs if state == "live")
        if hits:
            pinned = world._replace(pins=world.pins | {(number, hits[0])})
            yield f"{name} finds {hits[0]}", pinned.at(number, "document", hits[0])
        else:
            own = f"P{number + 1}"
            yield f"{name} reserves {own}", world.with_pack(own, "pending", number).at(number, "upload", own)
    elif phase == "upload":
        yield f"{name} uploads", world._replace(objects=world.objects | {pack}).at(number, "document", pack)
    elif phase == "document" and is_open:
        reserved = world._replace(documents=world.documents | {(name, number)})
        yield f"{name} reserves its document", reserved.at(number, "put", pack)
    elif phase == "put":
        yield f"{name} puts its document", world._replace(objects=world.objects | {name}).at(number, "ready", pack)
    elif phase == "ready":
        yield _commit(world, number, name, pack, variant)
    if phase not in ("done", "dead"):
        yield f"{name} crashes", world.at(number, "dead", "")
    if is_open and phase != "done":
        yield f"the lease of {name} runs out", world.session(number, "fenced")


def _commit(world: World, number: int, name: str, pack: str, variant: str) -> Step:
    is_open = world.sessions[number] == "open"
    if variant != "no recheck" and not (is_open and world.state(pack) in ("live", "pending")):
        return f"{name} is refused", world.at(number, "dead", "")
    made = world.with_commit(name, pack, "live").with_pack(pack, "live").session(number, "ended").at(number, "done", "")
    documents = frozenset(found for found in world.documents if found[0] != name)
    return f"{name} commits", made._replace(
        documents=documents, pins=frozenset(p for p in world.pins if p[0] != number)
    )


def _rewriter(world: World, variant: str) -> Iterator[Step]:
    phase, old, users = world.rewriter
    number = len(world.committers)
    is_open = world.sessions[number] == "open"
    if phase == "start" and is_open:
        for pack in sorted(found for found, state, _ in world.packs if state == "live"):
            needed_by = tuple(sorted(name for name, needed, _ in world.commits if needed == pack))
            reserved = world.with_pack("R", "pending", number)
            yield f"the rewriter looks at {pack}", reserved._replace(rewriter=("put", pack, needed_by))
    elif phase == "put":
        put = world._replace(objects=world.objects | {"R"}, rewriter=("ready", old, users))
        yield "the rewriter uploads R", put
    elif phase == "ready":
        yield _rewrite(world, old, users, variant)
    if phase in ("put", "ready"):
        yield "the rewriter crashes", world._replace(rewriter=("dead", "", ()))
    if is_open and phase in ("put", "ready", "dead"):
        yield "the lease of the rewriter runs out", world.session(number, "fenced")


def _rewrite(world: World, old: str, users: tuple[str, ...], variant: str) -> Step:
    number = len(world.committers)
    is_open = world.sessions[number] == "open"
    if variant != "no recheck of the rewriter" and not (is_open and world.state("R") == "pending"):
        return "the rewriter is refused", world._replace(rewriter=("dead", "", ()))
    everybody = variant == "everybody is moved"
    moved = [(name, state) for name, pack, state in world.commits if pack == old and (everybody or name in users)]
    made = world.with_pack("R", "live").session(number, "ended")
    for name, state in moved:
        made = made.with_commit(name, "R", state)
    if variant == "the old pack is condemned at once":
        made = made.with_pack(old, "condemned")
    unlooked = any(name not in users for name, _ in moved)
    return "the rewriter lets them need R", made._replace(rewriter=("done", "", ()), lost=world.lost or unlooked)


def _gc(world: World, variant: str) -> Iterator[Step]:
    phase, taken = world.gc
    if phase == "idle" and world.rounds:
        deleted = sorted(name for name, _, state in world.commits if state == "deleted")
        for over in chain.from_iterable(combinations(deleted, count) for count in range(len(deleted) + 1)):
            if variant == "purge what was listed before":
                yield f"gc lists {over}", world._replace(gc=("listed", over))
            else:
                yield f"gc purges {over} and condemns", _condemn(world, over, variant)
    elif phase == "listed":
        yield "gc purges what it had listed", _condemn(world, taken, variant)
    elif phase == "delete" and taken:
        yield f"gc deletes {taken[0]}", world._replace(objects=world.objects - {taken[0]}, gc=("settle", taken))
    elif phase == "settle":
        packs = frozenset(found for found in world.packs if found[0] != taken[0])
        documents = frozenset(found for found in world.documents if found[0] != taken[0])
        yield f"gc settles {taken[0]}", world._replace(packs=packs, documents=documents, gc=("delete", taken[1:]))
    elif phase == "delete":
        yield "gc ends its round", world._replace(gc=("idle", ()), rounds=world.rounds - 1)
    if phase in ("delete", "settle"):
        yield "gc crashes", world._replace(gc=("idle", ()), rounds=world.rounds - 1)


def _condemn(world: World, purged: tuple[str, ...], variant: str) -> World:
    """Purge commits and condemn what nobody needs then, in one transaction."""
    gone = {(name, state) for name, _, state in world.commits if name in purged}
    kept = frozenset(found for found in world.commits if found[0] not in purged)
    loose = {(name, -1) for name, _ in gone}
    world = world._replace(
        commits=kept, documents=world.documents | loose, lost=world.lost or "live" in {s for _, s in gone}
    )
    alive = {number for number, state in enumerate(world.sessions) if state == "open"}
    needed = {pack for _, pack, state in kept if state == "live" or variant != "deleted commits need nothing"}
    needed |= {pack for number, pack in world.pins if number in alive}
    for pack, state, owner in world.packs:
        if (state == "live" and pack not in needed) or (state == "pending" and owner not in alive):
            world = world.with_pack(pack, "condemned")
    dead = tuple(sorted(name for name, owner in world.documents if owner not in alive))
    doomed = tuple(sorted(pack for pack, state, _ in world.packs if state == "condemned"))
    return world._replace(gc=("delete", dead + doomed))


def _steps(world: World, variant: str) -> Iterator[Step]:
    yield from _user(world)
    for number in range(len(world.committers)):
        yield from _committer(world, number, variant)
    yield from _rewriter(world, variant)
    yield from _gc(world, variant)


def found(variant: str, committers: int, rounds: int, *, rewriting: bool) -> tuple[int, list[str]]:
    """The number of worlds seen, and the shortest way to a lost commit if there is one."""
    first = _start(committers, rounds, rewriting=rewriting)
    seen, _, way = search(first, lambda world: _steps(world, variant), lambda world: "lost" if world.has_lost else "")
    return seen, way


@pytest.mark.parametrize(
    ("committers", "rounds", "rewriting"), [(1, 3, False), (2, 2, False), (3, 1, False), (1, 2, True), (2, 1, True)]
)
def test_the_protocol_loses_nothing(committers, rounds, rewriting):
    seen, way = found("as it is", committers, rounds, rewriting=rewriting)
    assert way == []
    assert seen > 1000


@pytest.mark.parametrize(
    "variant",
    [
        "no recheck",
        "purge what was listed before",
        "deleted commits need nothing",
        "no recheck of the rewriter",
        "everybody is moved",
        "the old pack is condemned at once",
    ],
)
def test_leaving_a_part_out_loses_a_commit(variant):
    assert found(variant, 1, 2, rewriting=True)[1]
