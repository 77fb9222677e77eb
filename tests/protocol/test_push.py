"""Every interleaving of pushes of one commit into a store, what happens in both stores, crashes and fencing, to find a
commit that is not whole, or a push that tells what is not so.

In the target a push is a committer as in the model of the protocol, whose gc and users work there: a commit M0 of
another step needs the same chunk. The copies M1 and M2 are of one step, so that only one of them can be live. In the
source the commit may be purged, and its chunk moved into another pack, at any moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.protocol import test_protocol as protocol
from tests.protocol.searching import search

Step = tuple[str, "World"]
_BEFORE_READ = ("start", "look", "locate", "read", "missing")


class Source(NamedTuple):
    """The pack that holds the commit's chunk, "" once the commit is purged, and what is in storage."""

    pack: str = "S0"
    objects: frozenset[str] = frozenset({"S0"})


class World(NamedTuple):
    """Committers of the target are the pushes. `found` is where in the source each has found the chunk."""

    target: protocol.World
    source: Source = Source()
    found: tuple[str, ...] = ("", "")
    wrong: str = ""

    def at(self, number: int, phase: str, pack: str, found: str = "") -> World:
        places = (*self.found[:number], found, *self.found[number + 1 :])
        return self._replace(target=self.target.at(number, phase, pack), found=places)

    def ended(self, number: int, phase: str, wrong: str = "") -> World:
        ended = self.at(number, phase, "")
        target = ended.target.session(number, "ended")
        pins = frozenset(pin for pin in target.pins if pin[0] != number)
        return ended._replace(target=target._replace(pins=pins), wrong=wrong)

    def copies(self, *states: str) -> list[str]:
        return [name for name, _, state in self.target.commits if name != "M0" and state in states]


def _source(world: World) -> Iterator[Step]:
    pack, objects = source = world.source
    if pack == "S0":
        moved = Source("S1", objects | {"S1"})
        yield "the source moves its chunk", world._replace(source=moved)
    if pack:
        yield "the source purges its commit", world._replace(source=source._replace(pack=""))
    for name in objects - {pack}:
        yield f"the source deletes {name}", world._replace(source=source._replace(objects=objects - {name}))


def _target(world: World, variant: str) -> Iterator[Step]:
    for label, after in (*protocol._user(world.target), *protocol._gc(world.target, variant)):
        changed = world._replace(target=after)
        if len(changed.copies("live")) < 2:  # a step is not restored where it was made anew
            yield label, changed


def _push(world: World, number: int, variant: str) -> Iterator[Step]:
    (phase, pack), name = world.target.committers[number], f"push {number}"
    is_open = world.target.sessions[number] == "open"
    if phase == "start":
        yield _begun(world, number, variant)
    elif phase == "look" and is_open:
        yield _looked(world, number, variant)
    elif phase == "locate":
        found = world.source.pack
        after = "read" if found not in ("", world.found[number]) else "missing"
        yield f"{name} locates the chunk", world.at(number, after, pack, found)
    elif phase == "read" and world.found[number] in world.source.objects:
        yield f"{name} reads the chunk", world.at(number, "upload", pack)
    elif phase == "read":
        after = "missing" if variant == "a chunk is located once" else "locate"
        yield f"{name} does not find the chunk", world.at(number, after, pack, world.found[number])
    elif phase == "missing":
        yield f"{name} leaves it out", world.ended(number, "done", "fails" if world.source.pack else "")
    elif phase == "ready" and world.copies("live"):
        yield f"{name} comes second", world.ended(number, "discard")
    elif phase == "discard":
        own = {"M1"} if variant == "documents are named by their step" else {f"M{number + 1}"}
        left = world._replace(target=world.target._replace(objects=world.target.objects - own))
        yield f"{name} discards its document", left.ended(number, "done")
    if phase in ("upload", "document", "put") or (phase == "ready" and not world.copies("live")):
        for label, target in protocol._committer(world.target, number, variant):
            yield label, world._replace(target=target)
    elif phase not in ("start", "done", "dead"):
        yield f"{name} crashes", world.at(number, "dead", "")
        if is_open:
            yield f"the lease of {name} runs out", world._replace(target=world.target.session(number, "fenced"))


def _begun(world: World, number: int, variant: str) -> Step:
    counted = ("live", "deleted") if variant == "a deleted copy counts" else ("live",)
    if world.copies(*counted):
        return f"push {number} finds a copy", world.ended(number, "done", "" if world.copies("live") else "not there")
    return f"push {number} begins", world.at(number, "look", "")


def _looked(world: World, number: int, variant: str) -> Step:
    """As a committer does, but that the chunk is to be read before it is stored."""
    label, target = next(iter(protocol._committer(world.target.at(number, "start", ""), number, variant)))
    phase, pack = target.committers[number]
    return f"{label}, pushed", world._replace(target=target.at(number, "locate" if phase == "upload" else phase, pack))


def _steps(world: World, variant: str) -> Iterator[Step]:
    if any(phase in _BEFORE_READ for phase, _ in world.target.committers):
        yield from _source(world)
    yield from _target(world, variant)
    for number in range(len(world.found)):
        yield from _push(world, number, variant)


def _wrong(world: World) -> str:
    return "lost" if world.target.has_lost else world.wrong


def found(variant: str, pushes: int, rounds: int) -> tuple[int, str]:
    """The number of worlds seen, and what is wrong in one of them."""
    first = World(protocol._start(pushes, rounds, rewriting=False), found=("",) * pushes)
    seen, wrong, _ = search(first, lambda world: _steps(world, variant), _wrong)
    return seen, wrong


@pytest.mark.parametrize(("pushes", "rounds"), [(1, 2), (2, 1)])
def test_what_arrives_is_whole_and_what_is_told_is_so(pushes, rounds):
    seen, wrong = found("as it is", pushes, rounds)
    assert wrong == ""
    assert seen > 10_000


@pytest.mark.parametrize(
    ("variant", "wrong"),
    [
        ("no recheck", "lost"),
        ("purge what was listed before", "lost"),
        ("documents are named by their step", "lost"),
        ("a deleted copy counts", "not there"),
        ("a chunk is located once", "fails"),
    ],
)
def test_leaving_a_part_out_is_found(variant, wrong):
    assert found(variant, 2, 1)[1] == wrong
