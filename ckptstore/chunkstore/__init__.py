"""Where format, storage and catalog meet: chunks go in by value and come out by digest."""

from ckptstore.chunkstore.reader import DEFAULT_BUDGET, Fetch
from ckptstore.chunkstore.store import ChunkStore
from ckptstore.chunkstore.writer import ChunkWriter, Piece

__all__ = ["DEFAULT_BUDGET", "ChunkStore", "ChunkWriter", "Fetch", "Piece"]
