"""Every interleaving of committers, gc, rewriting and repair around chunks that rest on others, to find a lost chunk.

The other model shows that sessions, documents and packs are safe; here each step of a writer is one transaction, and
what matters is which frames the packs hold. A frame is a chunk and the chunk that it rests on, "" for a whole one. A
commit is what its document says, the chunks of its manifest and those that they rest on, and the packs that it needs.

A chunk is lost when a commit exists that cannot decode it from the packs it needs, resting on nothing but chunks of
its own document; unless the commit is known to have lost that very chunk to damage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, combinations

import pytest

from tests.protocol.searching import search

Chunks = frozenset[str]
Frame = tuple[str, str]
Step = tuple[str, "World"]


@dataclass(frozen=True)
class Commit:
    name: str
    manifest: Chunks
    bases: Chunks
    packs: frozenset[str]

    @property
    def chunks(self) -> Chunks:
        return self.manifest | self.bases


@dataclass(frozen=True)
class Writer:
    """A committer of chunk X, on its way; `own` are the frames of the pack that it brings."""

    phase: str
    own: frozenset[Frame] = frozenset()
    bases: Chunks = frozenset()
    packs: frozenset[str] = frozenset()


@dataclass(frozen=True)
class World:
    commits: frozenset[Commit]
    packs: frozenset[tuple[str, frozenset[Frame]]]  # the live ones
    writers: tuple[Writer, ...]
    rewriter: tuple[str, tuple[str, ...], tuple[tuple[str, Chunks], ...]]  # phase, old packs, commit → what of them
    pins: frozenset[tuple[str, str]] = frozenset()
    lost: frozenset[tuple[str, str]] = frozenset()  # chunk, commit
    repairs: int = 1

    def frames(self, packs: Iterable[str]) -> dict[str, list[tuple[str, str]]]:
        """Chunk → pack and base of each place, the oldest first."""
        held = dict(self.packs)
        found: dict[str, list[tuple[str, str]]] = {}
        for pack in sorted(set(packs) & held.keys()):
            for chunk, base in held[pack]:
                found.setdefault(chunk, []).append((pack, base))
        return found

    @property
    def live(self) -> set[str]:
        return {pack for pack, _ in self.packs}

    @property
    def has_lost(self) -> bool:
        return any(_unreadable(self, commit) for commit in self.commits)


def _unreadable(world: World, commit: Commit) -> set[str]:
    found = {""}
    places = world.frames(commit.packs)
    for _ in commit.chunks:
        found |= {chunk for chunk in commit.chunks if any(base in found for _, base in places.get(chunk, ()))}
    return set(commit.chunks - found) - {chunk for chunk, name in world.lost if name == commit.name}


def locate(world: World, chunk: str, variant: str) -> dict[str, tuple[str, str]]:
    """Pack and base of the chunk's best place, and of what it rests on; empty when it cannot be decoded."""
    places = world.frames(world.live)
    for pack, base in sorted(places.get(chunk, ()), key=lambda place: place[1] != ""):
        if not base or variant == "a chunk is found without what it rests on":
            return {chunk: (pack, "")}
        if below := locate(world, base, variant):
            return below | {chunk: (pack, base)}
    return {}


def _user(world: World) -> Iterator[Step]:
    for commit in world.commits:
        lost = frozenset(one for one in world.lost if one[1] != commit.name)
        yield f"{commit.name} is dropped", replace(world, commits=world.commits - {commit}, lost=lost)


def _gc(world: World) -> Iterator[Step]:
    needed = set().union(*(commit.packs for commit in world.commits)) | {pack for _, pack in world.pins}
    if world.live - needed:
        yield "gc", replace(world, packs=frozenset(one for one in world.packs if one[0] in needed))


def _writer(world: World, number: int, variant: str) -> Iterator[Step]:
    writer, name = world.writers[number], f"W{number}"
    if writer.phase == "start":
        found = locate(world, "X", variant)
        packs = frozenset(pack for pack, _ in found.values())
        bases = frozenset(base for _, base in found.values() if base)
        after = Writer("ready", frozenset(), bases, packs) if found else Writer("near")
        yield f"{name} looks for X: {found}", _moved(world, number, after, packs)
    elif writer.phase == "near":
        yield f"{name} stores X whole", _moved(world, number, Writer("ready", frozenset({("X", "")})), ())
        lost = any(chunk == "X" for chunk, _ in world.lost)
        if (found := {} if lost else locate(world, "B", variant)) and not found["B"][1]:
            pack = found["B"][0]
            needs = frozenset() if variant == "the packs of bases are not needed" else frozenset({pack})
            after = Writer("ready", frozenset({("X", "B")}), frozenset({"B"}), needs)
            yield f"{name} stores X on B", _moved(world, number, after, {pack})
    elif writer.phase == "ready":
        yield _commit(world, number, variant)


def _moved(world: World, number: int, writer: Writer, pinned: Iterable[str]) -> World:
    writers = (*world.writers[:number], writer, *world.writers[number + 1 :])
    return replace(world, writers=writers, pins=world.pins | {(f"W{number}", pack) for pack in pinned})


def _commit(world: World, number: int, variant: str) -> Step:
    writer, name = world.writers[number], f"W{number}"
    pins = frozenset(pin for pin in world.pins if pin[0] != name)
    done = replace(_moved(world, number, Writer("done"), ()), pins=pins)
    if not writer.packs <= world.live:
        return f"{name} is refused", done
    own = frozenset({name}) if writer.own else frozenset()
    made = _healed(done, name, writer.own, variant) if own else done
    commit = Commit(name, frozenset("X"), writer.bases, writer.packs | own)
    return f"{name} commits", replace(made, commits=made.commits | {commit})


def _healed(world: World, pack: str, frames: Iterable[Frame], variant: str) -> World:
    """The pack is live; commits that had lost a chunk of it need it now, and what rests on that is well again."""
    whole = {chunk for chunk, base in frames if not base or variant == "a delta heals"}
    back = {(chunk, name) for chunk, name in world.lost if chunk in whole}
    healed = {
        commit: replace(commit, packs=commit.packs | {pack})
        for commit in world.commits
        if any(name == commit.name for _, name in back)
    }
    well = {
        (chunk, commit.name)
        for commit in healed
        for chunk, places in world.frames(commit.packs).items()
        if any((base, commit.name) in back for _, base in places)
    }
    commits = frozenset(healed.get(commit, commit) for commit in world.commits)
    return replace(
        world, packs=world.packs | {(pack, frozenset(frames))}, commits=commits, lost=world.lost - back - well
    )


def _rewriter(world: World, variant: str) -> Iterator[Step]:
    phase, old, users = world.rewriter
    if phase == "start":
        for some in chain.from_iterable(combinations(sorted(world.live), count) for count in (1, 2)):
            looked = tuple((one.name, _needed_of(world, one, some, variant)) for one in world.commits)
            held = frozenset(("rewriter", pack) for pack in some)
            moving = ("ready", some, tuple(one for one in sorted(looked) if one[1]))
            yield f"the rewriter looks at {some}", replace(world, rewriter=moving, pins=world.pins | held)
    elif phase == "ready":
        yield "the rewriter is done", _rewritten(world, old, dict(users), variant)


def _needed_of(world: World, commit: Commit, packs: Iterable[str], variant: str) -> Chunks:
    chunks = commit.manifest if variant == "the bases of a document are not moved" else commit.chunks
    return chunks.intersection(world.frames(commit.packs.intersection(packs)))


def _rewritten(world: World, old: tuple[str, ...], users: dict[str, Chunks], variant: str) -> World:
    done = replace(
        world,
        rewriter=("done", (), ()),
        pins=frozenset(pin for pin in world.pins if pin[0] != "rewriter"),
    )
    if not set(old) <= world.live:
        return done
    needed = frozenset().union(*users.values())
    if not all(locate(world, chunk, variant) for chunk in needed):
        return done
    held = world.frames(old)
    frames = {(chunk, _base_kept(world, chunk, held[chunk], variant)) for chunk in needed}
    made = _healed(done, "R", frames, variant) if frames else done
    moved = {commit: replace(commit, packs=(commit.packs - set(old)) | {"R"}) for commit in made.commits}
    commits = frozenset(moved[commit] if commit.name in users else commit for commit in made.commits)
    return replace(made, commits=commits)


def _base_kept(world: World, chunk: str, places: list[tuple[str, str]], variant: str) -> str:
    """A delta is written whole where the packs differ in what it rests on."""
    found = locate(world, chunk, variant)
    base = found[chunk][1] if chunk in found else ""
    same = {other for _, other in places} == {base}
    return base if same or variant == "a delta is kept whatever its users have" else ""


def _repair(world: World, variant: str) -> Iterator[Step]:
    """A pack turns out to be damaged: it is retired, and all that commits needed of it is lost. What rests on that is
    lost too, or can be read all the same, until then, and is stored whole.
    """
    for pack in world.live if world.repairs else ():
        after = _retired(world, pack)
        resting = {(chunk, one.name) for one in after.commits for chunk in _unreadable(after, one)}
        noted = replace(after, lost=after.lost | resting)
        if variant == "what rests on what goes is left as it is":
            noted = after
        yield f"{pack} is damaged and retired", noted
        if resting:
            whole = {(chunk, "") for chunk, _ in resting}
            yield f"{pack} is retired, what rests on it is stored whole", _healed(noted, "S", whole, variant)


def _retired(world: World, pack: str) -> World:
    gone = dict(world.packs)[pack]
    users = [one for one in world.commits if pack in one.packs]
    lost = {(chunk, one.name) for one in users for chunk, _ in gone if chunk in one.chunks}
    commits = frozenset(replace(one, packs=one.packs - {pack}) for one in world.commits)
    return replace(world, packs=world.packs - {(pack, gone)}, commits=commits, lost=world.lost | lost, repairs=0)


def found(first: World, variant: str) -> tuple[int, list[str]]:
    """The number of worlds seen, and the shortest way to a lost chunk if there is one."""
    seen, _, way = search(first, lambda world: _steps(world, variant), lambda world: "lost" if world.has_lost else "")
    return seen, way


def _steps(world: World, variant: str) -> Iterator[Step]:
    yield from _user(world)
    yield from _gc(world)
    for number in range(len(world.writers)):
        yield from _writer(world, number, variant)
    yield from _rewriter(world, variant)
    yield from _repair(world, variant)


def _start(packs: dict[str, str], commits: Iterable[tuple[str, str, str]], *, writers: int = 1) -> World:
    """From "XB Y" for a pack of X on B and Y whole, and from a commit's manifest, bases and packs."""
    held = {pack: frozenset((frame[0], frame[1:]) for frame in frames.split()) for pack, frames in packs.items()}
    made = (
        Commit(f"C{number}", frozenset(manifest), frozenset(bases), frozenset(needs.split()))
        for number, (manifest, bases, needs) in enumerate(commits)
    )
    return World(frozenset(made), frozenset(held.items()), (Writer("start"),) * writers, ("start", (), ()))


STARTS = {
    "a delta beside what outlives its base": _start(
        {"P0": "B", "P1": "XB Y"}, [("B", "", "P0"), ("XY", "B", "P0 P1"), ("Y", "", "P1")]
    ),
    "two writers": _start({"P0": "B"}, [("B", "", "P0")], writers=2),
    "the same delta on two bases": _start(
        {"P0": "B", "P1": "A", "P2": "XB", "P3": "XA"}, [("X", "B", "P0 P2"), ("X", "A", "P1 P3")]
    ),
    "whole and as a delta": _start({"P0": "B", "P1": "XB Y", "P2": "X"}, [("XY", "B", "P0 P1"), ("XY", "", "P1 P2")]),
}
"""P0 to P3 are the packs there are at first, from the oldest on."""


@pytest.mark.parametrize("start", STARTS)
def test_deltas_lose_nothing(start):
    seen, way = found(STARTS[start], "as it is")
    assert way == []
    assert seen > 500


@pytest.mark.parametrize(
    "variant",
    [
        "a chunk is found without what it rests on",
        "the packs of bases are not needed",
        "the bases of a document are not moved",
        "a delta is kept whatever its users have",
        "a delta heals",
        "what rests on what goes is left as it is",
    ],
)
def test_leaving_a_part_out_loses_a_chunk(variant):
    assert any(found(start, variant)[1] for start in STARTS.values())
