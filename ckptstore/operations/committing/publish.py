"""Making a commit exist whose chunks are stored: its document, and the one transaction."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.records import CommitRecord, NewCommit, NewPack
from ckptstore.chunkstore import ChunkStore, ChunkWriter
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.errors import CatalogError, CatalogUnavailable, SessionFenced, StepExists, StorageError, holds_another
from ckptstore.format import document
from ckptstore.format.manifest import Manifest, logical_bytes
from ckptstore.operations.history import Draft, commit_at
from ckptstore.operations.problem import DAMAGE
from ckptstore.operations.session import writing_session
from ckptstore.patience import patiently
from ckptstore.storage.base import Storage


def taken_step(chunks: ChunkStore, draft: Draft) -> StepExists | None:
    """The error for a state that is not the one at the step, if there is one at all."""
    if commit_at(chunks.catalog, draft.run, draft.step) is None:
        return None
    return holds_another(draft.run, draft.step)


def new_commit(
    chunks: ChunkStore,
    manifest: Manifest,
    draft: Draft,
    own: Sequence[NewPack],
    needs: Mapping[str, int],
    bases: bytes,
) -> NewCommit:
    """What the catalog is asked for; `own` are packs that were written, `needs` says how many bytes of which packs."""
    name = uuid.uuid4().hex
    key = document.document_key(draft.run, draft.step, name)
    content = chunks.digest.compute(document.encode_manifest(manifest))
    body = document.Document(
        store=chunks.config.id,
        id=name,
        run=draft.run,
        step=draft.step,
        parent=draft.parent,
        created=_moment(chunks, draft),
        metadata=draft.metadata,
        content=content,
        packs=tuple(sorted(needs)),
        manifest=manifest,
        bases=bases,
        origin=draft.origin,
    )
    data = chunks.encode_document(body, key)
    created = None if draft.origin is None else draft.origin.created
    return commit_of(body, data, key, own, needs, created)


def _moment(chunks: ChunkStore, draft: Draft) -> float:
    """Now, or after what was deleted at that step by a clock that was ahead: a rebuild takes the newest one."""
    now, deleted = time.time(), chunks.catalog.deleted_document(draft.run, draft.step)
    if deleted is not None:
        key, data = deleted
        with suppress(*DAMAGE):
            return max(now, math.nextafter(chunks.decode_document(data, key).created, math.inf))
    return now


def commit_of(
    written: document.Document,
    data: bytes,
    key: str,
    own: Sequence[NewPack],
    needs: Mapping[str, int],
    created: float | None,
) -> NewCommit:
    """The commit that a document describes, encoded as `data` under a storage key.

    `own` are the packs that come with it, `needs` the bytes that it needs of every pack; `created`: as in NewCommit.
    """
    return NewCommit(
        id=written.id,
        run=written.run,
        step=written.step,
        parent=written.parent,
        metadata=written.metadata,
        content=written.content,
        document=key,
        manifest=data,
        leaves=len(written.manifest.entries),
        logical_bytes=logical_bytes(written.manifest),
        new_bytes=sum(pack.size for pack in own) + len(data),
        packs=own,
        needs=needs,
        created=created,
    )


def make_commit(
    chunks: ChunkStore,
    write: Callable[[ChunkWriter], NewCommit],
    *,
    refuse: StepExists | None,
    advance: Advance = ignore,
) -> CommitRecord:
    """Make a commit exist, in a session of its own, whose chunks `write` stores; see `ChunkStore.writer`, `publish`."""
    with writing_session(chunks.catalog) as session:
        writer = chunks.writer(session, refuse=refuse, advance=advance)
        try:
            new = write(writer)
            advance(0)
            return publish(chunks, session, new)
        except SessionFenced:
            discard(chunks.storage, writer.keys)
            raise


def publish(chunks: ChunkStore, session: str, new: NewCommit) -> CommitRecord:
    """Store the document and make the commit exist, durably; the record of the one that has the same content already.

    Raises SessionFenced, StepExists, StorageError, CatalogError.
    """
    if there := _again(chunks.catalog, session, new):
        return there
    chunks.catalog.reserve(session, (), document=new.document)
    try:
        chunks.storage.put(new.document, [new.manifest])
        made = _make_exist(chunks.catalog, session, new)
    except (SessionFenced, StepExists):  # gc may have been here already, and would not come again for it
        discard(chunks.storage, [new.document])
        raise
    if made.id != new.id:
        discard(chunks.storage, [new.document])  # gc does it if this fails
    return made


def _again(catalog: Catalog, session: str, new: NewCommit) -> CommitRecord | None:
    """To who has no catalog, another document of the step would be the newer one: it is not stored in vain."""
    if commit_at(catalog, new.run, new.step) is None:
        return None
    return patiently(lambda: catalog.again(session, new), CatalogUnavailable)


def _make_exist(catalog: Catalog, session: str, new: NewCommit) -> CommitRecord:
    try:
        return catalog.commit(session, new)
    except CatalogUnavailable:
        return patiently(lambda: _make_exist_again(catalog, session, new), CatalogUnavailable)


def _make_exist_again(catalog: Catalog, session: str, new: NewCommit) -> CommitRecord:
    """The reply was lost: the commit was made, and may be deleted since, or asking for the same makes it."""
    made = catalog.by_id(new.id)
    if made is not None:
        return made
    try:
        return catalog.commit(session, new)
    except SessionFenced as error:
        unknown = f"nobody knows whether step {new.step} of run {new.run!r} was committed for a moment"
        raise CatalogError(f"{unknown}; it is not there now: commit again") from error


def discard(storage: Storage, keys: Iterable[str]) -> None:
    """Delete what a writer stored whose commit will not be: gc may have been there before it."""
    with suppress(StorageError):  # the first error is the one to raise
        for key in keys:
            storage.delete(key)
