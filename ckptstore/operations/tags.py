"""Tags: in the catalog, and each in a document in storage, so that a catalog that is made anew has it.

A document is reserved in the catalog before it is stored, as that of a commit is, and never overwritten: a tag that
moves gets another one, and the older is for gc, unless it can be removed at once. To who has no catalog the newest
document of a tag holds whose commit is there.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from ckptstore.catalog.records import CommitRecord, Objects, TagRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import (
    CatalogError,
    InvalidArgument,
    SessionFenced,
    StepNotFound,
    StorageError,
)
from ckptstore.format import tagging
from ckptstore.format.tagging import TagDocument
from ckptstore.operations.address import check_name
from ckptstore.operations.committing.publish import discard
from ckptstore.operations.in_threads import each
from ckptstore.operations.problem import DAMAGE
from ckptstore.operations.session import writing_session

_COMMIT = re.compile(r"[0-9a-f]{32}")
ReadTags = tuple[dict[str, TagDocument], list[tuple[str, str]]]
"""What documents state; and those that cannot be read, each with the reason."""


def tag(chunks: ChunkStore, name: str, commit: CommitRecord, *, instead_of: str | None = None) -> None:
    """Give a commit a name in its run, taking it from another.

    Raises StepNotFound when the commit is not live, SessionFenced when `instead_of` is not the tag's document any more.
    """
    key = tagging.new_tag_key()
    document = TagDocument(store=chunks.config.id, run=commit.run, name=name, commit=commit.id, created=time.time())
    with writing_session(chunks.catalog) as session:
        chunks.catalog.reserve(session, (), key)
        try:
            chunks.storage.put(key, [tagging.encode(document, key, chunks.sealer)])
            older = chunks.catalog.tag(session, name, commit, key, instead_of)
        except (SessionFenced, StepNotFound):  # gc may have been here already, and would not come again for it
            discard(chunks.storage, [key])
            raise
    _remove(chunks, older)


def untag(chunks: ChunkStore, run: str, name: str) -> None:
    """Remove a tag. Raises RunNotFound, TagNotFound."""
    _remove(chunks, chunks.catalog.untag(run, name))


def store_missing(chunks: ChunkStore) -> None:
    """Give tags documents that have none in storage: those of an older schema, and of what storage lost."""
    for record in missing_tags(chunks):
        store_again(chunks, record)


def store_again(chunks: ChunkStore, record: TagRecord) -> bool:
    """Give a tag another document in storage, unless it is moved or removed meanwhile; whether it has it.

    Raises SessionFenced when gc took who does this for dead.
    """
    commit = chunks.catalog.by_id(record.commit)
    if commit is None:
        return False
    try:
        tag(chunks, record.name, commit, instead_of=record.document)
    except StepNotFound:
        return False
    except SessionFenced:
        if record in chunks.catalog.tags():
            raise
        return False
    return True


def missing_tags(chunks: ChunkStore) -> list[TagRecord]:
    """Those whose documents are not in storage."""
    records = chunks.catalog.tags()
    stored = set(tag_keys(chunks)) if records else set()
    return [record for record in records if record.document not in stored]


def tag_keys(chunks: ChunkStore) -> list[str]:
    """Where documents of tags lie in storage."""
    return [info.key for info in chunks.storage.list(tagging.PREFIX) if tagging.is_tag_key(info.key)]


@dataclass(frozen=True, slots=True)
class EnteredTags:
    """What does not count of the documents of tags, each with the reason: what cannot be used, and what was moved."""

    useless: list[tuple[str, str]]
    superseded: list[tuple[str, str]]


def enter_tags(chunks: ChunkStore, read: ReadTags) -> EnteredTags:
    """Let a catalog that nobody else uses know the tags whose documents are in storage.

    Of those of commits that are there the newest counts: one that is newer still may be of who died before it moved the
    tag.
    """
    documents, useless = read
    live = {commit.id: commit for commit in chunks.catalog.commits()} if documents else {}
    newest: dict[tuple[str, str], TagRecord] = {}
    superseded = []
    for key, one in sorted(documents.items(), key=lambda item: (item[1].created, item[0]), reverse=True):
        commit = live.get(one.commit)
        if (one.run, one.name) in newest:
            superseded.append((key, f"the tag {one.name!r} of run {one.run!r} was moved later"))
        elif commit is None or commit.run != one.run:
            useless.append((key, f"the tag {one.name!r} of run {one.run!r} is of a commit that is not there"))
        else:
            newest[one.run, one.name] = TagRecord(one.run, one.name, commit.id, commit.step, key)
    chunks.catalog.enter_tags(list(newest.values()))
    return EnteredTags(useless, superseded)


def _remove(chunks: ChunkStore, key: str | None) -> None:
    """Where this fails, gc does it."""
    if key:
        with suppress(StorageError, CatalogError):
            chunks.storage.delete(key)
            chunks.catalog.settle(Objects([key]))


def stored_tags(chunks: ChunkStore) -> ReadTags:
    """Read all documents of tags. One that is moved meanwhile is looked for again, where it is by then."""
    documents, damaged, seen = dict[str, TagDocument](), list[tuple[str, str]](), set[str]()
    while fresh := (listed := set(tag_keys(chunks))) - seen:
        seen |= fresh
        found, reasons = read_tags(chunks, sorted(fresh))
        documents |= found
        damaged += reasons
    return documents, [(key, reason) for key, reason in damaged if key in listed]


def read_tags(chunks: ChunkStore, keys: Iterable[str]) -> ReadTags:
    """Read the documents of tags."""
    keys = list(keys)
    documents, damaged = dict[str, TagDocument](), list[tuple[str, str]]()
    for key, found in zip(keys, each(keys, lambda key: _read(chunks, key)), strict=True):
        if isinstance(found, str):
            damaged.append((key, found))
        else:
            documents[key] = found
    return documents, damaged


def _read(chunks: ChunkStore, key: str) -> TagDocument | str:
    try:
        found = tagging.decode(chunks.storage.get(key), key, chunks.sealer)
        check_name("run", found.run)
        check_name("tag", found.name)
    except (*DAMAGE, InvalidArgument) as error:
        return str(error)
    if found.store != chunks.config.id or not math.isfinite(found.created) or not _COMMIT.fullmatch(found.commit):
        return f"tag document {key} is of another store, or of no commit or time"
    return found
