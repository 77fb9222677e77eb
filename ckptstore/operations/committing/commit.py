"""Making a commit: a flattened state becomes chunks in packs, a manifest document, and one row in the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
from msgspec.structs import replace

from ckptstore.catalog.records import CommitRecord, NewCommit
from ckptstore.chunkstore import ChunkStore, ChunkWriter, Piece
from ckptstore.chunkstore.glances import LEAST, Glances
from ckptstore.chunkstore.grouping import Advance
from ckptstore.errors import StepExists
from ckptstore.format import version
from ckptstore.format.codecs import BYTES
from ckptstore.format.grid import Division, Grid, default_chunk_shape, grid_of
from ckptstore.format.manifest import INLINE_TENSOR, INLINE_VALUE, Entry, Manifest, Value, ValueEntry
from ckptstore.operations.committing.adam import Trained
from ckptstore.operations.committing.arrivals import Arrival, Arrivals
from ckptstore.operations.committing.lineage import Lineage, Rest
from ckptstore.operations.committing.publish import make_commit, new_commit, taken_step
from ckptstore.operations.history import Draft, placed
from ckptstore.state.adam import find_recipes
from ckptstore.state.addresses import lies_in
from ckptstore.state.arrays import is_of_others, plain_bytes
from ckptstore.state.devices.leaf import DeviceLeaf, bring_all
from ckptstore.state.lending import LiveLeaf, Loan, live_leaves
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.tree import Flat
from ckptstore.state.watched import Watched


def commit(chunks: ChunkStore, flat: Flat, draft: Draft, advance: Advance) -> CommitRecord:
    """Store what is new of `flat` and make the commit exist, durably.

    The same state at the same step is success again.

    Raises:
        StepExists: the step holds another state.
        StateError: a tensor of the host was changed while it was read.
        SessionFenced: the writer was taken for dead in the middle.
        StorageError, CatalogError: a write failed; no step was changed.
        CatalogUnavailable: the database did not answer; when that was at the very end, the step may be there. Either
            way the same may be committed again.
    """
    version.check_features(chunks.config.requires_write, "write to", chunks.storage.url)
    draft = placed(chunks.catalog, draft)
    if taken := taken_step(chunks, draft):
        try:
            return _commit(chunks, flat, draft, advance, taken)
        except StepExists:
            if taken_step(chunks, draft) or live_leaves(flat):
                raise  # otherwise it was deleted meanwhile; what was lent may have changed since
    return _commit(chunks, flat, draft, advance, None)


def _commit(chunks: ChunkStore, flat: Flat, draft: Draft, advance: Advance, refuse: StepExists | None) -> CommitRecord:
    advance(_inline_bytes(flat))
    return make_commit(chunks, partial(_write, chunks, flat, draft), refuse=refuse, advance=advance)


def _write(chunks: ChunkStore, flat: Flat, draft: Draft, writer: ChunkWriter) -> NewCommit:
    watched = Watched(flat)
    with writer:
        manifest = _write_leaves(writer, flat, chunks, Lineage(chunks, draft.parent))
        own, needs = writer.finish()
    watched.check()
    for leaf in live_leaves(flat):
        leaf.lender.check()
    return new_commit(chunks, manifest, draft, own, needs, writer.bases)


class _Planned(msgspec.Struct, frozen=True):
    """A leaf on its way: its entry as yet without digests, and the grid of its chunks if it has some."""

    leaf: TensorLeaf | bytes
    entry: Entry
    grid: Grid | None

    def numbers(self, missing: Sequence[int]) -> Sequence[int]:
        """Of its pieces, which on a device are those of the chunks that are missing in the store."""
        if isinstance(self.leaf, DeviceLeaf):
            return missing
        return range(len(self.grid)) if self.grid is not None else ()

    def pieces(self, path: str, lineage: Lineage, arriving: Iterable[Arrival], *, likely_new: bool) -> Iterator[Piece]:
        """Its chunks, those from a device as they arrive, with what they may rest on."""
        if self.grid is None:
            return
        if isinstance(self.leaf, DeviceLeaf):
            for number, data, copied in arriving:
                yield Piece(data, copied, self.leaf.form, Rest(lineage, path, self.entry, number))
            return
        leaf = self.leaf if isinstance(self.leaf, TensorLeaf) else TensorLeaf(np.frombuffer(self.leaf, np.uint8))
        form = self.leaf.form if isinstance(self.leaf, TensorLeaf) else BYTES
        counts = leaf is self.leaf
        plain = None if is_of_others(leaf.tensor) else plain_bytes(leaf.tensor)
        loan, at = None, 0
        for number, size in enumerate(self.grid.sizes(leaf.itemsize)):
            if plain is None:
                data = leaf.box(*self.grid.box(number))
            else:
                data, loan = self._borrowed(plain, at, at + size)
            rest = Rest(lineage, path, self.entry, number)
            live = path if counts and (plain is not None or lies_in(data, leaf.tensor)) else ""
            yield Piece(data, plain is None, form, rest, loan, likely_new, counts=counts, live=live)
            at += size

    def _borrowed(self, plain: memoryview, start: int, stop: int) -> tuple[memoryview, Loan | None]:
        if isinstance(self.leaf, LiveLeaf):
            return self.leaf.lender.borrow(start, stop)
        return plain[start:stop], None


def _write_leaves(writer: ChunkWriter, flat: Flat, chunks: ChunkStore, lineage: Lineage) -> Manifest:
    repeated = flat.tied
    division = chunks.config.division
    steady = _steady(flat, chunks.glances)
    likely_new_first = sorted(flat.leaves, key=steady.__contains__)
    untied = {path: flat.leaves[path] for path in likely_new_first if path not in repeated}
    brought = _brought(untied.values())
    planned = {path: _plan(leaf, division, brought) for path, leaf in untied.items()}
    recipes = find_recipes(flat) if chunks.compression == "best" else []
    trained = Trained(recipes, {path: item.entry for path, item in planned.items()}, lineage)
    arrivals = Arrivals(writer, _on_devices(planned))
    order = trained.order({path: item.numbers(arrivals.missing(path)) for path, item in planned.items()})
    arrivals.begin(order)

    def pieces(path: str) -> Iterator[Piece]:
        return planned[path].pieces(path, lineage, arrivals.of(path), likely_new=path not in steady)

    written = writer.write(trained.related(path, number, piece) for path, number, piece in _in_order(order, pieces))
    held = {path: bytearray() for path in planned}
    for (path, _), digest in zip(order, written, strict=True):
        held[path] += digest
    arrivals.name(held, chunks.digest.size)
    made = {path: replace(item.entry, chunks=bytes(held[path])) for path, item in planned.items()}
    return Manifest({path: made[repeated.get(path, path)] for path in flat.leaves}, flat.containers, flat.aliases)


def _in_order(
    order: Sequence[tuple[str, int]], pieces: Callable[[str], Iterator[Piece]]
) -> Iterator[tuple[str, int, Piece]]:
    """Path, number and chunk. Leaves are begun and forgotten in turn: of many, Python would collect garbage in vain."""
    left, begun = Counter(path for path, _ in order), dict[str, Iterator[Piece]]()
    for path, number in order:
        if path not in begun:
            begun[path] = pieces(path)
        yield path, number, next(begun[path])
        left[path] -= 1
        if not left[path]:
            del begun[path]


def _steady(flat: Flat, glances: Glances) -> set[str]:
    """The leaves here that look as they did at the last commit."""
    large = {
        path: plain_bytes(leaf.tensor)
        for path, leaf in flat.leaves.items()
        if isinstance(leaf, TensorLeaf) and not isinstance(leaf, DeviceLeaf) and leaf.nbytes >= LEAST
    }
    return glances.steady({path: data for path, data in large.items() if data is not None})


def _inline_bytes(flat: Flat) -> int:
    """Of the arrays that stand in the manifest itself."""
    return sum(leaf.nbytes for leaf in flat.arrays if leaf.nbytes <= INLINE_TENSOR)


def _on_devices(planned: Mapping[str, _Planned]) -> dict[str, tuple[DeviceLeaf, Grid]]:
    leaves = ((path, item.leaf, item.grid) for path, item in planned.items())
    return {path: (leaf, grid) for path, leaf, grid in leaves if isinstance(leaf, DeviceLeaf) and grid is not None}


def _brought(leaves: Iterable[TensorLeaf | Value]) -> dict[DeviceLeaf, bytes]:
    """What lies on devices and is to stand in the manifest itself."""
    small = [leaf for leaf in leaves if isinstance(leaf, DeviceLeaf) and 0 < leaf.nbytes <= INLINE_TENSOR]
    return dict(zip(small, map(bytes, bring_all((leaf, (0, leaf.nbytes)) for leaf in small)), strict=True))


def _plan(leaf: TensorLeaf | Value, division: Division, brought: Mapping[DeviceLeaf, bytes]) -> _Planned:
    if not isinstance(leaf, TensorLeaf):
        return _plan_value(leaf, division.most)
    here = brought[leaf] if isinstance(leaf, DeviceLeaf) and leaf in brought else None
    return _plan_tensor(leaf, division, here)


def _plan_tensor(leaf: TensorLeaf, division: Division, here: bytes | None) -> _Planned:
    """A tensor, whose bytes are `here` if they had to be brought."""
    shape, small = leaf.shape, leaf.nbytes <= INLINE_TENSOR
    grid = grid_of(shape, default_chunk_shape(shape, leaf.itemsize, division))
    inline = b"" if not small else bytes(leaf.row_major()) if here is None else here
    return _Planned(leaf, leaf.entry(grid.chunk_shape, inline=inline), None if small else grid)


def _plan_value(value: Value, most: int) -> _Planned:
    encoded = msgspec.msgpack.encode(value)
    if len(encoded) <= INLINE_VALUE:
        return _Planned(encoded, ValueEntry(value), None)
    entry = ValueEntry(None, len(encoded), most)
    return _Planned(encoded, entry, Grid((len(encoded),), (most,)))
