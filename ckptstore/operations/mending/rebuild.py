"""A catalog from what lies in storage: every manifest document whose chunks are all there is a commit again.

Documents and the footers of packs say everything but two things: deletions that can still be restored (they are
undone), and commits that died just before they began to exist (they do exist then: all their bytes are there).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import TypeVar

from ckptstore.batching import batched
from ckptstore.catalog.base import Catalog
from ckptstore.catalog.places import Places
from ckptstore.catalog.records import LeftOutDocument, NewPack, Objects
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.errors import CorruptData, InvalidArgument
from ckptstore.format import document
from ckptstore.format.document import Document
from ckptstore.format.manifest import check_consistent
from ckptstore.format.packs import PREFIX as PACKS
from ckptstore.operations.address import check_metadata, check_name, check_step
from ckptstore.operations.committing.publish import commit_of
from ckptstore.operations.footers import read_any_pack
from ckptstore.operations.in_threads import BATCH, each
from ckptstore.operations.manifests import document_digests, missing_digests
from ckptstore.operations.mending.twins import damaged_copies, twins, without_damaged
from ckptstore.operations.problem import DAMAGE
from ckptstore.operations.session import LEASE_SECONDS
from ckptstore.operations.tags import enter_tags, stored_tags
from ckptstore.storage.base import Storage

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class LeftOut:
    """An object in storage that the new catalog knows nothing of: its key, and why."""

    object: str
    reason: str


@dataclass(frozen=True, slots=True)
class RebuildReport:
    """What a rebuild found: commits and packs that the catalog has now, and what it left out."""

    commits: int
    packs: int
    left_out: tuple[LeftOut, ...]


@dataclass(frozen=True, slots=True)
class _Candidate:
    """What is kept in memory of a document until its commit is made; `lacking` says why it cannot be, if so."""

    key: str
    id: str
    run: str
    step: int
    parent: str | None
    created: float
    lacking: str


def rebuild(chunks: ChunkStore, advance: Advance = ignore) -> RebuildReport:
    """Enter every whole commit of the storage into the catalog, which nobody else may use meanwhile.

    Commits that the catalog has already are kept, so an interrupted rebuild can be run again. `advance` is given the
    bytes of each document that was entered.

    Raises StorageError when something cannot be read now: it is not left out, since it may be there later.
    """
    left_out: list[LeftOut] = []
    tags_read = stored_tags(chunks)
    before = set(_document_keys(chunks))  # of what comes while packs are read, some would be missed
    held = _without_damaged(chunks, list(_read_packs(chunks.storage, left_out)))
    places = Places()
    for pack in held.values():
        for chunk in pack.chunks:
            places.add(0, chunk)
    superseded: list[LeftOut] = []
    keys = [key for key in _document_keys(chunks) if key in before]
    found = list(_read_documents(chunks, keys, places, left_out))
    lacking = [one for one in found if one.lacking]
    left_out += [LeftOut(one.key, one.lacking) for one in lacking]
    candidates = _newest([one for one in found if not one.lacking], superseded)
    _forget(chunks.catalog, [left.object for left in superseded])
    live, gone = {pack.name for pack in chunks.catalog.packs()}, list[LeftOut]()
    for batch in batched(_parents_first(candidates), BATCH):
        read = each(batch, lambda one: _or_reason(lambda: chunks.storage.get(one.key)))
        for candidate, data in zip(batch, read, strict=True):
            if isinstance(data, str):  # a gc that does not know of this one has removed it since
                gone.append(LeftOut(candidate.key, data))
                continue
            if chunks.catalog.by_id(candidate.id) is None:
                live |= _enter(chunks, candidate.key, data, held, places, live)
            advance(len(data))
    _leave_out(chunks.catalog, lacking)
    tags = enter_tags(chunks, tags_read)
    _let_go(chunks.catalog, [key for key, _ in tags.superseded])
    stale = [LeftOut(key, reason) for key, reason in (*tags.useless, *tags.superseded)]
    return RebuildReport(len(candidates) - len(gone), len(live), (*left_out, *superseded, *gone, *stale))


def _enter(
    chunks: ChunkStore, key: str, data: bytes, held: Mapping[str, NewPack], places: Places, live: set[str]
) -> set[str]:
    """Make a commit through the writers' own door; the packs it needs."""
    written = chunks.decode_document(data, key)
    digests = document_digests(written, chunks.digest.size)
    needs: Counter[str] = Counter()
    for location in places.closure(digests, within=digests).values():
        needs[location.pack] += location.length
    own = [held[name] for name in sorted(needs.keys() - live)]
    chunks.catalog.enter(commit_of(written, data, key, own, needs, written.original.created))
    return set(needs)


def _without_damaged(chunks: ChunkStore, packs: Sequence[NewPack]) -> dict[str, NewPack]:
    several = twins(packs)
    return without_damaged(packs, list(each(packs, lambda pack: damaged_copies(chunks, pack, several))))


def _read_packs(storage: Storage, left_out: list[LeftOut]) -> Iterator[NewPack]:
    """Those that are there in the end: a gc may move what is needed of some into others meanwhile.

    What comes later still is needed by commits that come as late: nobody waits until there is nothing new.
    """
    read: dict[str, NewPack | str] = {}
    for _ in range(2):
        listed = list(storage.list(PACKS))
        fresh = [info for info in listed if info.key not in read]
        found = each(fresh, lambda info: _or_reason(lambda: read_any_pack(storage, info)))
        read.update(zip((info.key for info in fresh), found, strict=True))
    for info in listed:
        pack = read[info.key]
        if isinstance(pack, str):
            left_out.append(LeftOut(info.key, pack))
        else:
            yield pack


def _document_keys(chunks: ChunkStore) -> list[str]:
    return [info.key for info in chunks.storage.list(document.PREFIX)]


def _read_documents(
    chunks: ChunkStore, keys: Sequence[str], places: Places, left_out: list[LeftOut]
) -> Iterator[_Candidate]:
    for key, found in zip(keys, each(keys, lambda key: _or_reason(lambda: _check(chunks, key, places))), strict=True):
        if isinstance(found, str):
            left_out.append(LeftOut(key, found))
        else:
            yield found


def _check(chunks: ChunkStore, key: str, places: Places) -> _Candidate:
    if not document.is_document_key(key):
        raise CorruptData(f"{key} is no manifest document")
    written = chunks.decode_document(chunks.storage.get(key), key)
    check_consistent(written.manifest, chunks.digest.size, key)
    _check_address(written, key)
    named = document.is_key_of(key, written.run, written.step, written.id)
    if written.store != chunks.config.id or not named:
        raise CorruptData(f"{key} is of another store or commit than its name says")
    lacking = _lacking(written, missing_digests(written, places, chunks.digest.size))
    return _Candidate(key, written.id, written.run, written.step, written.parent, written.created, lacking)


def _lacking(written: Document, missing: Collection[bytes]) -> str:
    if not missing:
        return ""
    return f"{written.run}@{written.step}: {len(missing)} of its chunks are in no pack, {min(missing).hex()} among them"


def _check_address(written: Document, key: str) -> None:
    """Raises CorruptData for what no writer may be given."""
    try:
        check_name("run", written.run)
        check_step(written.step)
        check_metadata(written.metadata)
    except InvalidArgument as error:
        raise CorruptData(f"{key}: {error}") from None
    for moment in (written.created, written.original.created):
        if not math.isfinite(moment):
            raise CorruptData(f"{key}: it was created at {moment}")


def _newest(candidates: Iterable[_Candidate], superseded: list[LeftOut]) -> list[_Candidate]:
    """One for each step, since one that was deleted and made anew may have left an older document; one for each id."""
    newest: dict[tuple[str, int], _Candidate] = {}
    for candidate in sorted(candidates, key=lambda one: (one.created, one.id)):
        older = newest.pop((candidate.run, candidate.step), None)
        if older is not None:
            superseded.append(LeftOut(older.key, f"{older.run}@{older.step} was made anew later"))
        newest[candidate.run, candidate.step] = candidate
    by_id = {candidate.id: candidate for candidate in newest.values()}
    others = (candidate for candidate in newest.values() if by_id[candidate.id] is not candidate)
    superseded += [LeftOut(other.key, f"has the id of {by_id[other.id].key}") for other in others]
    return list(by_id.values())


def _leave_out(catalog: Catalog, lacking: Sequence[_Candidate]) -> None:
    """But for those that an interrupted rebuild has entered, or superseded, when they were whole."""
    unknown = set(catalog.unknown(Objects([one.key for one in lacking])).documents)
    catalog.leave_out([LeftOutDocument(one.key, one.run, one.step) for one in lacking if one.key in unknown])


def _forget(catalog: Catalog, documents: Sequence[str]) -> None:
    """Let these count as removed already, so that gc does not take the catalog for an older one."""
    catalog.settle(Objects(_let_go(catalog, documents)))


def _let_go(catalog: Catalog, documents: Sequence[str]) -> Sequence[str]:
    """Leave these to the next gc; those that were not known before."""
    fresh = catalog.unknown(Objects(documents)).documents
    if fresh:
        session = catalog.open_session(LEASE_SECONDS)
        for key in fresh:
            catalog.reserve(session, (), key)
        catalog.end_session(session)
    return fresh


def _parents_first(candidates: Sequence[_Candidate]) -> list[_Candidate]:
    by_id = {candidate.id: candidate for candidate in candidates}
    parents = {one.id: [one.parent] if one.parent in by_id else [] for one in candidates}
    try:
        return [by_id[name] for name in TopologicalSorter(parents).static_order()]
    except CycleError as error:
        ring = ", ".join(by_id[name].key for name in error.args[1][1:])
        raise CorruptData(f"these documents are each other's parents: {ring}; move one of them away") from None


def _or_reason(act: Callable[[], Found]) -> Found | str:
    try:
        return act()
    except DAMAGE as error:
        return str(error)
