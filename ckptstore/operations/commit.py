"""Making a commit: a flattened state becomes chunks in packs, a manifest document, and one row in the catalog."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from ckptstore.catalog.base import CommitRecord, NewCommit, NewPack
from ckptstore.chunkstore import ChunkStore, ChunkWriter, Piece
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.errors import StepExists, StepNotFound, RunNotFound
from ckptstore.format import document
from ckptstore.format.grid import Grid, default_chunk_shape
from ckptstore.format.manifest import Entry, Manifest, TensorEntry, Value, ValueEntry, logical_bytes
from ckptstore.operations.history import Draft
from ckptstore.operations.session import writing_session
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.tree import Flat

_INLINE_TENSOR = 64
_INLINE_VALUE = 1024


def commit(chunks: ChunkStore, flat: Flat, draft: Draft, advance: Advance = ignore) -> CommitRecord:
    """Store what is new of `flat` and make the commit exist, durably.

    The same state at the same step is success again.

    Raises:
        StepExists: the step holds another state.
        SessionFenced: the writer was taken for dead in the middle.
        StorageError, CatalogError: a write failed; no step was changed.
    """
    taken = StepExists(f"step {draft.step} of run {draft.run!r} holds another state: commit to a new step")
    refuse = taken if _exists(chunks, draft) else None
    with writing_session(chunks.catalog) as session:
        with chunks.writer(session, refuse=refuse, advance=advance) as writer:
            manifest = _write_leaves(writer, flat, chunks.config.chunk_bytes)
            own, used = writer.finish()
        new = _new_commit(chunks, manifest, draft, own, used, flat)
        chunks.catalog.reserve(session, (), document=new.document)
        chunks.storage.put(new.document, [new.manifest])
        made = chunks.catalog.commit(session, new)
    if made.id != new.id:
        chunks.storage.delete(new.document)
    return made


def _exists(chunks: ChunkStore, draft: Draft) -> bool:
    try:
        chunks.catalog.find(draft.run, draft.step)
    except (RunNotFound, StepNotFound):
        return False
    return True


def _new_commit(
    chunks: ChunkStore, manifest: Manifest, draft: Draft, own: list[NewPack], used: list[str], flat: Flat
) -> NewCommit:
    name = uuid.uuid4().hex
    content = chunks.digest.compute(document.encode_manifest(manifest))
    body = document.Document(
        store=chunks.config.id,
        id=name,
        run=draft.run,
        step=draft.step,
        parent=draft.parent,
        created=time.time(),
        metadata=draft.metadata,
        content=content,
        packs=tuple(sorted({*used, *(pack.name for pack in own)})),
        manifest=manifest,
    )
    data = document.encode(body)
    return NewCommit(
        id=name,
        run=draft.run,
        step=draft.step,
        parent=draft.parent,
        metadata=draft.metadata,
        content=content,
        document=document.document_key(draft.run, draft.step, name),
        manifest=data,
        leaves=len(manifest.entries),
        logical_bytes=logical_bytes(manifest),
        new_bytes=sum(pack.size for pack in own) + len(data),
        packs=own,
        uses=used,
    )
