"""Where format, storage and catalog meet: chunks go in by value and come out by digest."""

from ckptstore.chunkstore.encoding import Made, NewChunk, Piece
from ckptstore.chunkstore.jobs import Fetch
from ckptstore.chunkstore.needs import DEFAULT_BUDGET
from ckptstore.chunkstore.store import ChunkStore
from ckptstore.chunkstore.writer import ChunkWriter

__all__ = ["DEFAULT_BUDGET", "ChunkStore", "ChunkWriter", "Fetch", "Made", "NewChunk", "Piece"]
