"""Tags: in the catalog, and each in a document in storage, so that a catalog that is made anew has it.

A document is stored before the catalog is told, and never overwritten: a tag that moves gets another one. Of several
that tell of one tag the newest holds. What died between the two is brought together by gc.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress

from ckptstore.catalog.base import CommitRecord, TagRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CorruptData, InvalidArgument, ObjectExists, ObjectNotFound, StepNotFound
from ckptstore.format import tagging
from ckptstore.format.tagging import TagDocument
from ckptstore.operations.address import check_name
from ckptstore.operations.problem import DAMAGE, Problem
from ckptstore.operations.publish import discard

_LATE_SECONDS = 3600.0
"""How old a document is that nobody can be about to tell the catalog of."""


def tag(chunks: ChunkStore, name: str, commit: CommitRecord) -> None:
    """Give a commit a name in its run, taking it from another. Raises StepNotFound when the commit is not live."""
    key = tagging.new_tag_key()
    _store(chunks, key, commit.run, name, commit.id, time.time())
    try:
        older = chunks.catalog.tag(name, commit, key)
    except StepNotFound:
        discard(chunks.storage, [key])
        raise
    discard(chunks.storage, [older] if older else [])


def untag(chunks: ChunkStore, run: str, name: str) -> None:
    """Remove a tag of a run, its document first: what dies in between leaves the tag, to be removed again.

    Raises RunNotFound, TagNotFound.
    """
    there = {record.name: record.document for record in chunks.catalog.tags(run)}
    if there.get(name):
        chunks.storage.delete(there[name])
    document = chunks.catalog.untag(run, name)
    if document != there.get(name):  # it has been moved meanwhile
        discard(chunks.storage, [document])


def late_tags(chunks: ChunkStore) -> list[str]:
    """Documents that the catalog does not know: of writers that died, or of a newer catalog than this one."""
    limit = time.time() - _LATE_SECONDS
    late = [info.key for info in chunks.storage.list(tagging.PREFIX) if info.modified < limit]
    known = {record.document for record in chunks.catalog.tags()}
    return [key for key in late if tagging.is_tag_key(key) and key not in known]


def settle_tags(chunks: ChunkStore, late: Collection[str]) -> None:
    """Let catalog and storage tell the same: store the documents that are missing, and heed these or remove them."""
    stored = {info.key for info in chunks.storage.list(tagging.PREFIX)}
    for record in chunks.catalog.tags():
        commit = None if record.document else chunks.catalog.by_id(record.commit)
        if commit is not None:
            tag(chunks, record.name, commit)
        elif record.document not in stored:
            with suppress(ObjectExists):
                _store(chunks, record.document, record.run, record.name, record.commit, record.created)
    told, _ = _readable(chunks, late)
    discard(chunks.storage, [key for key, _ in _heed(chunks, told)])


def enter_tags(chunks: ChunkStore) -> list[tuple[str, str]]:
    """Let the catalog know the tags that storage tells of; the documents that do not count, each with the reason."""
    keys = [info.key for info in chunks.storage.list(tagging.PREFIX) if tagging.is_tag_key(info.key)]
    told, damaged = _readable(chunks, keys)
    return [*damaged, *_heed(chunks, told)]


def check_tags(chunks: ChunkStore) -> Iterator[Problem]:
    """Damage to the documents of tags. One that is not there is no damage: gc stores it."""
    for record in filter(lambda record: record.document, chunks.catalog.tags()):
        try:
            told = _read(chunks, record.document)
        except ObjectNotFound:
            continue
        except DAMAGE as error:
            yield Problem(record.document, f"{error}; give {record.run}@{record.step} the tag {record.name!r} again")
        else:
            if (told.run, told.name, told.commit) != (record.run, record.name, record.commit):
                yield Problem(record.document, f"tells of another tag than {record.name!r} of run {record.run!r}")


def _heed(chunks: ChunkStore, told: Mapping[str, TagDocument]) -> Iterator[tuple[str, str]]:
    """Point each tag where the newest of the documents says, unless the catalog's own is newer; as `enter_tags`."""
    known = {(record.run, record.name): record for record in chunks.catalog.tags()}
    for key, one in sorted(told.items(), key=lambda item: item[1].created):
        here, record = f"the tag {one.name!r} of run {one.run!r}", known.get((one.run, one.name))
        if record is not None and record.document != key and one.created <= _created(chunks, record):
            yield key, f"{here} was moved later"
            continue
        commit = chunks.catalog.by_id(one.commit)
        if commit is None or commit.run != one.run or commit.deleted is not None:
            yield key, f"{here} is of a commit that is not there"
            continue
        older = chunks.catalog.tag(one.name, commit, key)
        if older and older != key:
            yield older, f"{here} was moved later"


def _created(chunks: ChunkStore, record: TagRecord) -> float:
    told, _ = _readable(chunks, [record.document])
    return told[record.document].created if told else record.created


def _store(chunks: ChunkStore, key: str, run: str, name: str, commit: str, created: float) -> None:
    written = TagDocument(store=chunks.config.id, run=run, name=name, commit=commit, created=created)
    chunks.storage.put(key, [tagging.encode(written, key, chunks.sealer)])


def _readable(chunks: ChunkStore, keys: Iterable[str]) -> tuple[dict[str, TagDocument], list[tuple[str, str]]]:
    """What the documents tell; and those that cannot be read, each with the reason."""
    told, damaged = dict[str, TagDocument](), list[tuple[str, str]]()
    for key in keys:
        try:
            told[key] = _read(chunks, key)
        except DAMAGE as error:
            damaged.append((key, str(error)))
    return told, damaged


def _read(chunks: ChunkStore, key: str) -> TagDocument:
    """Raises CorruptData for what no writer of this store makes, and ObjectNotFound."""
    told = tagging.decode(chunks.storage.get(key), key, chunks.sealer)
    try:
        check_name("run", told.run)
        check_name("tag", told.name)
    except InvalidArgument as error:
        raise CorruptData(f"{key}: {error}") from None
    if told.store != chunks.config.id or not math.isfinite(told.created):
        raise CorruptData(f"{key} is of another store, or of no time")
    return told
