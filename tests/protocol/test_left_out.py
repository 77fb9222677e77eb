"""Every order of saves, deletions, damage, catalogs lost and brought back from copies, rebuilds and gc, to find a
commit that gc took though somebody still wants it, or a gc that is refused for no reason.

All commits are made at one step. Each needs one chunk, x or y, and finds it in a pack or brings a pack of its own; a
commit is whole while some pack of the storage holds its chunk. What runs at the same time, leases and crashes are the
other models'; clocks are right here, and one gc is one step.

A commit is wanted until its user deletes it, makes its step anew after a rebuild that reported it as left out, or
learns from a rebuild that another one took its place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.protocol.searching import search

Step = tuple[str, "World"]


class Catalog(NamedTuple):
    """What one catalog knows. `known` are documents that gc may remove, or that were removed."""

    commits: frozenset[tuple[str, str]] = frozenset()  # name, "live" or "deleted"
    packs: frozenset[str] = frozenset()
    known: frozenset[str] = frozenset()
    left_out: frozenset[str] = frozenset()

    @property
    def live(self) -> str | None:
        return next((name for name, state in self.commits if state == "live"), None)

    def knows(self, name: str) -> bool:
        return name in self.known or any(name == found for found, _ in self.commits)


class World(NamedTuple):
    """The storage, its catalog, a copy of that, and what is wanted. Names are a number, in order, and a chunk."""

    documents: frozenset[str] = frozenset()
    packs: frozenset[str] = frozenset()
    catalog: Catalog = Catalog()
    copy: Catalog | None = None
    vanished: str = ""
    wanted: frozenset[str] = frozenset()
    made: int = 0
    rebuilds: int = 0
    confused: bool = False  # the catalog is an older one, or packs came back that no rebuild has seen
    lost: bool = False
    stuck: bool = False

    def holds(self, name: str) -> bool:
        return any(pack[1] == name[1] for pack in self.packs)

    def unknown(self, *, whole: bool) -> list[str]:
        return [name for name in self.documents if not self.catalog.knows(name) and self.holds(name) == whole]


def _user(world: World, variant: str) -> Iterator[Step]:
    catalog = world.catalog
    if catalog.live is not None:
        gone = (catalog.commits - {(catalog.live, "live")}) | {(catalog.live, "deleted")}
        deleted = catalog._replace(commits=gone)
        yield f"{catalog.live} is deleted", world._replace(catalog=deleted, wanted=world.wanted - {catalog.live})
        superseded = catalog.left_out if variant == "who makes the same again supersedes" else frozenset()
        again = catalog._replace(known=catalog.known | superseded, left_out=catalog.left_out - superseded)
        yield f"{catalog.live} is made again", world._replace(catalog=again)
    elif world.made < 2:
        for chunk in "xy":
            name = f"{world.made}{chunk}"
            yield f"{name} is made", _commit(world, name, variant)


def _commit(world: World, name: str, variant: str) -> World:
    catalog = world.catalog
    found = {pack for pack in catalog.packs if pack[1] == name[1]}
    superseded = catalog.left_out if variant != "commits supersede nothing" else frozenset()
    made = catalog._replace(
        commits=catalog.commits | {(name, "live")},
        packs=catalog.packs if found else catalog.packs | {name},
        known=catalog.known | superseded,
        left_out=catalog.left_out - superseded,
    )
    return world._replace(
        documents=world.documents | {name},
        packs=world.packs if found else world.packs | {name},
        catalog=made,
        wanted=(world.wanted | {name}) - catalog.left_out,
        made=world.made + 1,
    )


def _mishaps(world: World, variant: str) -> Iterator[Step]:
    if not world.vanished:
        for pack in world.packs:
            yield f"pack {pack} vanishes", world._replace(packs=world.packs - {pack}, vanished=pack)
    elif world.vanished not in world.packs:
        back = world.packs | {world.vanished}
        yield f"pack {world.vanished} is brought back", world._replace(packs=back, confused=True)
    if world.copy is None:
        yield "the catalog is copied", world._replace(copy=world.catalog)
    elif world.copy != world.catalog:
        yield "the copy is brought back", world._replace(catalog=world.copy, confused=True)
    if world.rebuilds < 2:
        yield "the catalog is lost and rebuilt", _rebuild(world, variant)


def _rebuild(world: World, variant: str) -> World:
    whole = sorted(name for name in world.documents if world.holds(name))
    entered, superseded = whole[-1:], frozenset(whole[:-1])
    left_out = world.documents.difference(whole)
    needed = frozenset(pack for pack in world.packs if entered and pack[1] == entered[0][1])
    dropped = left_out if variant == "rebuilds supersede" and entered else frozenset()
    known_at_once = left_out if variant == "what is left out is known" else frozenset()
    return world._replace(
        catalog=Catalog(
            commits=frozenset((name, "live") for name in entered),
            packs=needed,
            known=superseded | dropped | known_at_once,
            left_out=left_out - dropped,
        ),
        wanted=world.wanted - superseded,
        rebuilds=world.rebuilds + 1,
        confused=False,
    )


def _gc(world: World, variant: str, *, sweeping: bool) -> Iterator[Step]:
    label = "gc sweeps" if sweeping else "gc"
    older = world.unknown(whole=True)
    if variant == "what is older than a commit is superseded" and world.catalog.commits:
        newest = max(name for name, _ in world.catalog.commits)
        world = world._replace(
            catalog=world.catalog._replace(known=world.catalog.known | {name for name in older if name < newest})
        )
        older = world.unknown(whole=True)
    catalog = world.catalog
    live = frozenset((name, state) for name, state in catalog.commits if state == "live")
    purged = frozenset(name for name, _ in catalog.commits - live)
    needed = {pack for pack in catalog.packs for name, _ in live if pack[1] == name[1]}
    if older or not needed <= world.packs or (sweeping and world.unknown(whole=False)):
        yield f"{label} is refused", world._replace(stuck=world.stuck or (bool(older) and not world.confused))
        return
    useless = catalog.packs - needed
    after = world._replace(
        documents=world.documents - purged - catalog.known,
        packs=world.packs & needed if sweeping else world.packs - useless,
        catalog=catalog._replace(commits=live, packs=catalog.packs - useless, known=catalog.known | purged),
    )
    hurt = [name for name in world.wanted if _is_there(world, name) and not _is_there(after, name)]
    yield label, after._replace(lost=world.lost or bool(hurt))


def _is_there(world: World, name: str) -> bool:
    return name in world.documents and world.holds(name)


def _steps(world: World, variant: str) -> Iterator[Step]:
    yield from _user(world, variant)
    yield from _mishaps(world, variant)
    for sweeping in (False, True):
        yield from _gc(world, variant, sweeping=sweeping)


def _wrong(world: World) -> str:
    return "lost" if world.lost else "stuck" if world.stuck else ""


def test_gc_takes_nothing_that_is_wanted_and_is_not_refused_for_nothing():
    seen, found, _ = search(World(), lambda world: _steps(world, "as it is"), _wrong)
    assert found == ""
    assert seen > 10_000


@pytest.mark.parametrize(
    ("variant", "found"),
    [
        ("commits supersede nothing", "stuck"),
        ("rebuilds supersede", "lost"),
        ("who makes the same again supersedes", "lost"),
        ("what is left out is known", "lost"),
        ("what is older than a commit is superseded", "lost"),
    ],
)
def test_other_ways_lose_a_commit_or_refuse_gc(variant, found):
    assert search(World(), lambda world: _steps(world, variant), _wrong)[1] == found
