"""The chunks of a commit that lie on devices: those that the store holds stay there, the others are on their way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ckptstore.chunkstore import ChunkWriter
from ckptstore.format.grid import Grid
from ckptstore.format.manifest import split_digests
from ckptstore.state.devices.leaf import DeviceLeaf, bring_all

Arrival = tuple[int, memoryview, bool]
"""The number of a chunk, its bytes, and whether these are a copy for us alone."""


class Arrivals:
    """Of some leaves, by path, with the grids of their chunks."""

    def __init__(self, writer: ChunkWriter, leaves: Mapping[str, tuple[DeviceLeaf, Grid]]) -> None:
        self._leaves = {path: leaf for path, (leaf, _) in leaves.items()}
        self._spans = {path: grid.spans(leaf.itemsize) for path, (leaf, grid) in leaves.items()}
        known = {path: list(map(leaf.digests().get, self._spans[path])) for path, leaf in self._leaves.items()}
        known_digests = [digest for digests in known.values() for digest in digests if digest is not None]
        held = writer.rely_on(known_digests)
        self._known = {path: [it if it in held else None for it in digests] for path, digests in known.items()}
        self._contents: Iterator[memoryview] = iter(())

    def missing(self, path: str) -> list[int]:
        """Numbers of a leaf's chunks that the store is not known to hold."""
        return [number for number, digest in enumerate(self._known.get(path, ())) if digest is None]

    def begin(self, order: Iterable[tuple[str, int]]) -> None:
        """Send them on their way; the order is that of all leaves' chunks, by path and number."""
        wanted = [(self._leaves[path], self._spans[path][number]) for path, number in order if path in self._leaves]
        self._contents = bring_all(wanted)

    def of(self, path: str) -> Iterator[Arrival]:
        """Those of a leaf. Leaves take turns in the order that `begin` was given."""
        for number in self.missing(path):
            yield number, next(self._contents), not self._leaves[path].shadow.on_host

    def name(self, written: dict[str, bytearray], digest_size: int) -> None:
        """Add the digests of the chunks that were not missing to those that were, and let the leaves learn them."""
        for path, known in self._known.items():
            rest = iter(split_digests(bytes(written[path]), digest_size))
            digests = [next(rest) if digest is None else digest for digest in known]
            written[path] = bytearray().join(digests)
            self._leaves[path].digests().update(zip(self._spans[path], digests, strict=True))
