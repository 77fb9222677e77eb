"""Making a commit: a flattened state becomes chunks in packs, a manifest document, and one row in the catalog."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import msgspec
import numpy as np
from msgspec.structs import replace

from ckptstore.catalog.base import CommitRecord, NewCommit, NewPack
from ckptstore.chunkstore import ChunkStore, ChunkWriter, Piece
from ckptstore.chunkstore.grouping import Advance
from ckptstore.errors import StepExists
from ckptstore.format import document, version
from ckptstore.format.grid import Grid, default_chunk_shape
from ckptstore.format.manifest import Entry, Manifest, TensorEntry, Value, ValueEntry, logical_bytes
from ckptstore.operations.history import Draft
from ckptstore.operations.session import writing_session
from ckptstore.state.tensors import TensorLeaf, chunk_bytes, plain_bytes
from ckptstore.state.tree import Flat

_INLINE_TENSOR = 64
_INLINE_VALUE = 1024


def commit(chunks: ChunkStore, flat: Flat, draft: Draft, advance: Advance) -> CommitRecord:
    """Store what is new of `flat` and make the commit exist, durably.

    The same state at the same step is success again.

    Raises:
        StepExists: the step holds another state.
        SessionFenced: the writer was taken for dead in the middle.
        StorageError, CatalogError: a write failed; no step was changed.
    """
    version.check_features(chunks.config.requires_write, "write to", chunks.storage.url)
    if _exists(chunks, draft):
        taken = StepExists(f"step {draft.step} of run {draft.run!r} holds another state: commit to a new step")
        try:
            return _commit(chunks, flat, draft, advance, taken)
        except StepExists:
            if _exists(chunks, draft):
                raise  # otherwise it was deleted meanwhile
    return _commit(chunks, flat, draft, advance, None)


def _commit(chunks: ChunkStore, flat: Flat, draft: Draft, advance: Advance, refuse: StepExists | None) -> CommitRecord:
    with writing_session(chunks.catalog) as session:
        with chunks.writer(session, refuse=refuse, advance=advance) as writer:
            manifest = _write_leaves(writer, flat, chunks.config.chunk_bytes)
            own, needs = writer.finish()
        new = _new_commit(chunks, manifest, draft, own, needs)
        chunks.catalog.reserve(session, (), document=new.document)
        chunks.storage.put(new.document, [new.manifest])
        made = chunks.catalog.commit(session, new)
    if made.id != new.id:
        chunks.storage.delete(new.document)
    return made


def _exists(chunks: ChunkStore, draft: Draft) -> bool:
    newest = chunks.catalog.newest(draft.run, draft.step)
    return newest is not None and newest.step == draft.step


def _new_commit(
    chunks: ChunkStore, manifest: Manifest, draft: Draft, own: list[NewPack], needs: dict[str, int]
) -> NewCommit:
    name = uuid.uuid4().hex
    key = document.document_key(draft.run, draft.step, name)
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
        packs=tuple(sorted(needs)),
        manifest=manifest,
    )
    data = chunks.encode_document(body, key)
    return NewCommit(
        id=name,
        run=draft.run,
        step=draft.step,
        parent=draft.parent,
        metadata=draft.metadata,
        content=content,
        document=key,
        manifest=data,
        leaves=len(manifest.entries),
        logical_bytes=logical_bytes(manifest),
        new_bytes=sum(pack.size for pack in own) + len(data),
        packs=own,
        needs=needs,
    )


@dataclass(frozen=True, slots=True)
class _Planned:
    """A leaf on its way: its entry as yet without digests, and the grid of its chunks if it has some."""

    leaf: TensorLeaf | bytes
    entry: Entry
    grid: Grid | None

    def pieces(self) -> Iterator[Piece]:
        """The raw bytes of its chunks."""
        if self.grid is None:
            return
        array = self.leaf.tensor if isinstance(self.leaf, TensorLeaf) else np.frombuffer(self.leaf, np.uint8)
        plain = plain_bytes(array)
        if plain is None:
            for number in range(len(self.grid)):
                yield Piece(chunk_bytes(array, *self.grid.box(number)), copied=True)
            return
        at = 0
        for size in self.grid.sizes(array.itemsize):
            yield Piece(plain[at : at + size], copied=False)
            at += size


def _write_leaves(writer: ChunkWriter, flat: Flat, most: int) -> Manifest:
    repeated = {path: group[0] for group in flat.aliases for path in group[1:]}
    planned = {path: _plan(leaf, most) for path, leaf in flat.leaves.items() if path not in repeated}
    digests = iter(writer.write(piece for item in planned.values() for piece in item.pieces()))
    entries: dict[str, Entry] = {}
    for path in flat.leaves:
        if path in repeated:
            entries[path] = entries[repeated[path]]
        else:
            item = planned[path]
            held = b"".join(islice(digests, len(item.grid))) if item.grid is not None else b""
            entries[path] = replace(item.entry, chunks=held) if held else item.entry
    return Manifest(entries, flat.containers, flat.aliases)


def _plan(leaf: TensorLeaf | Value, most: int) -> _Planned:
    return _plan_tensor(leaf, most) if isinstance(leaf, TensorLeaf) else _plan_value(leaf, most)


def _plan_tensor(leaf: TensorLeaf, most: int) -> _Planned:
    shape, itemsize = leaf.shape, leaf.itemsize
    small = leaf.nbytes <= _INLINE_TENSOR
    grid = Grid(shape, default_chunk_shape(shape, itemsize, most))
    entry = TensorEntry(
        library=leaf.library,
        dtype=leaf.dtype,
        itemsize=itemsize,
        shape=shape,
        chunk_shape=grid.chunk_shape,
        inline=bytes(chunk_bytes(leaf.tensor, (0,) * len(shape), shape)) if small else b"",
        order=leaf.order,
        requires_grad=leaf.requires_grad,
        parameter=leaf.parameter,
    )
    return _Planned(leaf, entry, None if small else grid)


def _plan_value(value: Value, most: int) -> _Planned:
    encoded = msgspec.msgpack.encode(value)
    if len(encoded) <= _INLINE_VALUE:
        return _Planned(encoded, ValueEntry(value), None)
    entry = ValueEntry(None, len(encoded), most)
    return _Planned(encoded, entry, Grid((len(encoded),), (most,)))
