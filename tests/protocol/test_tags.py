"""Every interleaving of who moves or removes a tag, gc, deletions, crashes, fencing, lost catalogs and readers without
one, to find a tag that is lost, that comes back, or that does not hold its commit.

There is one tag, and there are commits A and B. A document of the tag is named by when it was made and what it names:
clocks are right here, but any lease may run out, and the grace of any deleted commit be over, at any moment. Whoever is
at work when the catalog is lost is dead.

What may come back is where the tag was, or was to be, while a document of that is still in storage. So a gc during
which nobody else did anything must leave the tag's own only, and those that a writer stored after gc had come for them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import pytest

from tests.protocol.searching import search

Step = tuple[str, "World"]


class Worker(NamedTuple):
    """Who tags or removes a tag. `older` is the document that goes then; with `instead_of`, the only one that may."""

    phase: str = "start"
    document: str = ""
    older: str = ""
    instead_of: str = ""

    @property
    def at_work(self) -> bool:
        return self.phase not in ("start", "done", "dead")


class Reader(NamedTuple):
    """Who reads without a catalog; `held` while there was a tag all the time."""

    phase: str = "done"
    todo: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()
    found: bool = False
    held: bool = True


class World(NamedTuple):
    """All that catalog and storage hold, and where everybody stands. The last worker is gc's own."""

    workers: tuple[Worker, ...]
    tag: str = ""
    commits: frozenset[tuple[str, str]] = frozenset({("A", "live"), ("B", "live")})
    loose: frozenset[tuple[str, int]] = frozenset()  # documents, of tags and commits, and who reserved them, -1 nobody
    gone: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset({"A", "B"})
    late: frozenset[str] = frozenset()  # stored after gc had come for them
    missing: str = ""  # damage took it
    gc: tuple[str, tuple[str, ...]] = ("idle", ())
    reader: Reader = Reader()
    rounds: int = 0
    losses: int = 0
    made: int = 1
    undisturbed: bool = False
    wrong: str = ""

    def at(self, number: int, worker: Worker) -> World:
        workers = (*self.workers[:number], worker, *self.workers[number + 1 :])
        return self._replace(workers=workers, undisturbed=False)

    def knows(self, document: str) -> bool:
        return document in self.gone or document == self.tag or document in {name for name, _ in self.loose}

    def documents(self, commits: Collection[str]) -> set[str]:
        """Those in storage that name one of the commits."""
        return {name for name in self.stored if len(name) > 1 and name[1:] in commits}


def _loosened(world: World, *documents: str) -> World:
    """Nobody's from now on."""
    others = frozenset(one for one in world.loose if one[0] not in documents)
    return world._replace(loose=others | {(name, -1) for name in documents})


def _settled(world: World, document: str) -> World:
    if (document, -1) not in world.loose:
        return world
    return world._replace(loose=world.loose - {(document, -1)}, gone=world.gone | {document})


def _user(world: World, variant: str) -> Iterator[Step]:
    for name, state in world.commits:
        other = "deleted" if state == "live" else "live"
        if other == "live" or world.tag[1:] != name or variant == "a tagged commit may be deleted":
            commits = (world.commits - {(name, state)}) | {(name, other)}
            yield f"{name} becomes {other}", world._replace(commits=commits)
    for document, owner in world.loose:
        if owner >= 0:
            yield f"the lease for {document} runs out", _loosened(world, document)._replace(undisturbed=False)


def _worker(world: World, number: int, variant: str) -> Iterator[Step]:
    worker, name = world.workers[number], f"W{number}"
    phase, document, older, _ = worker
    if phase == "start":
        for commit, state in world.commits:
            if state == "live":
                yield _begun(world, number, Worker(document=f"{world.made}{commit}"), variant)
        if world.tag:
            removed = _loosened(world, world.tag)._replace(tag="")
            yield f"{name} removes {world.tag}", removed.at(number, Worker("delete", "", world.tag))
    elif phase == "put":
        came = document in world.gone or (world.gc[0] == "settle" and world.gc[1][0] == document)
        late = world.late | {document} if came else world.late
        put = world._replace(stored=world.stored | {document}, late=late)
        after = "delete" if world.tag == document else "ready"
        yield f"{name} stores {document}", put.at(number, worker._replace(phase=after))
    elif phase == "ready":
        yield _tag(world, number, variant)
    elif phase == "delete":
        after = "put" if variant == "the older one is deleted first" and world.tag != document else "settle"
        deleted = world._replace(stored=world.stored - {older})
        yield f"{name} deletes {older}", deleted.at(number, worker._replace(phase=after))
    elif phase == "settle":
        yield f"{name} settles {older}", _settled(world, older).at(number, Worker("done"))
    elif phase == "discard":
        ended = _loosened(world, document) if (document, number) in world.loose else world
        discarded = ended._replace(stored=world.stored - {document})
        yield f"{name} discards {document}", discarded.at(number, Worker("done"))
    if worker.at_work:
        yield f"{name} crashes", world.at(number, Worker("dead"))


def _begun(world: World, number: int, worker: Worker, variant: str) -> Step:
    """The document is made, and reserved."""
    if variant == "the catalog is told first":
        worker = worker._replace(phase="ready")
    elif variant == "the older one is deleted first" and world.tag:
        worker = worker._replace(phase="delete", older=world.tag)
    else:
        worker = worker._replace(phase="put")
    own = set() if variant == "nothing is reserved" else {(worker.document, number)}
    begun = world._replace(loose=world.loose | own, made=world.made + 1)
    return f"W{number} makes {worker.document}", begun.at(number, worker)


def _tag(world: World, number: int, variant: str) -> Step:
    """The one transaction."""
    document, older, instead_of = world.workers[number].document, world.tag, world.workers[number].instead_of
    fenced = (document, number) not in world.loose
    moved = instead_of not in ("", older)
    if (
        (fenced and variant not in ("who is fenced tags", "nothing is reserved"))
        or ((document[1:], "live") not in world.commits and variant != "what is deleted is tagged")
        or (moved and variant != "gc does not look again")
    ):
        return f"W{number} is refused", world.at(number, Worker("discard", document))
    told = world._replace(loose=world.loose - {(document, number)}, tag=document)
    tagged = _loosened(told, older) if older else told
    if document not in world.stored and variant == "the catalog is told first":
        after = Worker("put", document, older)
    else:
        after = Worker("delete", document, older) if older else Worker("done")
    return f"W{number} tags {document}", tagged.at(number, after)._replace(wrong="moved back" if moved else "")


def _gc(world: World, variant: str) -> Iterator[Step]:
    phase, taken = world.gc
    if phase == "idle" and world.rounds:
        quiet = not any(worker.at_work for worker in world.workers) and all(owner < 0 for _, owner in world.loose)
        unknown = {name for name in world.documents({name for name, _ in world.commits}) if not world.knows(name)}
        begun = world._replace(gc=("condemn", ()), undisturbed=quiet, wrong="gc is refused" if unknown else "")
        yield "gc begins", begun
    elif phase == "condemn":
        yield "gc condemns", _condemned(world)
    elif phase == "delete" and taken:
        deleted = world._replace(stored=world.stored - {taken[0]}, gc=("settle", taken))
        yield f"gc deletes {taken[0]}", deleted
    elif phase == "settle":
        yield f"gc settles {taken[0]}", _settled(world, taken[0])._replace(gc=("delete", taken[1:]))
    elif phase == "delete":
        yield "gc looks for more", world._replace(gc=("condemn", ()))
    elif phase == "look":
        yield "gc looks at the tag", world._replace(gc=("list", (world.tag,)))
    elif phase == "list":
        yield _store_missing(world, taken[0], variant)
    if phase != "idle":
        yield "gc crashes", world._replace(gc=("idle", ()), rounds=world.rounds - 1, undisturbed=False)


def _condemned(world: World) -> World:
    """What was deleted is purged, and what is nobody's is to go, documents of commits first."""
    purged = frozenset(one for one in world.commits if one[1] == "deleted")
    after = _loosened(world._replace(commits=world.commits - purged), *(name for name, _ in purged))
    documents = sorted((name for name, owner in after.loose if owner < 0), key=lambda name: (len(name), name))
    return after._replace(gc=("delete" if documents else "look", tuple(documents)))


def _store_missing(world: World, tag: str, variant: str) -> Step:
    ended = world._replace(gc=("idle", ()), rounds=world.rounds - 1)
    if tag and tag not in world.stored:
        return _begun(ended, len(world.workers) - 1, Worker(document=f"{world.made}{tag[1:]}", instead_of=tag), variant)
    left = world.documents(world.stored) - world.late - {world.tag}
    return "gc ends", ended._replace(wrong="left behind" if left and world.undisturbed else "")


def _rebuild(world: World, variant: str) -> Iterator[Step]:
    if not world.losses:
        return
    whole = {name for name in world.stored if len(name) == 1}
    usable = world.documents(whole if variant != "the newest counts, whatever it names" else "AB")
    newest = max(usable, default="")
    tag = newest if newest[1:] in whole else ""
    moved = frozenset(usable - {newest})
    known = variant == "what was moved counts as removed"
    lost = world.tag in world.stored and not tag
    rebuilt = World(
        workers=tuple(Worker("dead") if worker.at_work else worker for worker in world.workers),
        tag=tag,
        commits=frozenset((name, "live") for name in whole),
        loose=frozenset() if known else frozenset((name, -1) for name in moved),
        gone=moved if known else frozenset(),
        stored=world.stored,
        rounds=world.rounds,
        losses=world.losses - 1,
        made=world.made,
        wrong="lost" if lost else "",
    )
    yield "the catalog is lost and rebuilt", rebuilt


def _reader(world: World, variant: str) -> Iterator[Step]:
    reader = world.reader
    listed = frozenset(world.documents("AB"))
    if reader.phase == "start":
        yield "the reader lists", world._replace(reader=Reader("read", listed, listed, held=bool(world.tag)))
    elif reader.phase == "read" and reader.todo:
        name = min(reader.todo)
        read = reader._replace(todo=reader.todo - {name}, found=reader.found or name in world.stored)
        yield f"the reader reads {name}", world._replace(reader=read)
    elif reader.phase == "read":
        fresh = frozenset() if variant == "readers list once" else listed - reader.seen
        again = reader._replace(phase="read" if fresh else "done", todo=fresh, seen=reader.seen | fresh)
        missed = not fresh and reader.held and not reader.found
        yield "the reader lists again", world._replace(reader=again, wrong="not found" if missed else "")


def _steps(world: World, variant: str) -> Iterator[Step]:
    yield from _user(world, variant)
    for number in range(len(world.workers)):
        yield from _worker(world, number, variant)
    yield from _gc(world, variant)
    yield from _rebuild(world, variant)
    yield from _reader(world, variant)


def _watched(world: World, variant: str) -> Iterator[Step]:
    for label, after in _steps(world, variant):
        held = after.reader.held and bool(after.tag)
        yield label, after._replace(reader=after.reader._replace(held=held)) if after.reader.phase != "done" else after


def _wrong(world: World) -> str:
    if world.tag and (world.tag[1:], "live") not in world.commits:
        return "not held"
    if world.tag and world.tag != world.missing and world.tag not in world.stored:
        return "no document"
    return world.wrong


def _start(workers: int, **settings: Any) -> World:
    return World((Worker(),) * workers + (Worker("done"),), tag="0A", **settings)


_WITH_DOCUMENT = frozenset({"A", "B", "0A"})
STARTS = {
    "catalogs are lost": _start(1, stored=_WITH_DOCUMENT, rounds=2, losses=2),
    "its document is missing": _start(1, missing="0A", rounds=2, losses=1),
    "two workers and gc": _start(2, stored=_WITH_DOCUMENT, rounds=1),
    "two workers and a lost catalog": _start(2, stored=_WITH_DOCUMENT, losses=1),
    "two workers and a reader": _start(2, stored=_WITH_DOCUMENT, reader=Reader("start")),
}


def found(start: str, variant: str) -> tuple[int, str]:
    """The number of worlds seen, and what is wrong in one of them."""
    seen, wrong, _ = search(STARTS[start], lambda world: _watched(world, variant), _wrong)
    return seen, wrong


@pytest.mark.parametrize("start", STARTS)
def test_tags_are_kept_and_stay_away(start):
    seen, wrong = found(start, "as it is")
    assert wrong == ""
    assert seen > 10_000


@pytest.mark.parametrize(
    ("variant", "start", "wrong"),
    [
        ("the catalog is told first", "catalogs are lost", "no document"),
        ("the older one is deleted first", "catalogs are lost", "no document"),
        ("nothing is reserved", "catalogs are lost", "gc is refused"),
        ("who is fenced tags", "catalogs are lost", "no document"),
        ("what is deleted is tagged", "catalogs are lost", "not held"),
        ("a tagged commit may be deleted", "catalogs are lost", "not held"),
        ("the newest counts, whatever it names", "catalogs are lost", "lost"),
        ("what was moved counts as removed", "catalogs are lost", "left behind"),
        ("gc does not look again", "its document is missing", "moved back"),
        ("readers list once", "two workers and a reader", "not found"),
    ],
)
def test_leaving_a_part_out_is_found(variant, start, wrong):
    assert found(start, variant)[1] == wrong
