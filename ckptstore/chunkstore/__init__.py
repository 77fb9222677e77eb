"""Where format, storage and catalog meet: chunks go in by value and come out by digest.

In, by `ChunkWriter`: a `Piece` is a chunk's raw bytes. It is hashed, and looked up; what the store holds is pinned for
the commit, and only what it does not hold is encoded, in one of three ways (`encoding`, `deriving`):

- as what a codec computes from other chunks, of the store and of those just before it (`Made`, a `Derivation`);
- as a difference to the chunk at the same place of the parent commit, its base, which is `near`;
- whole.

The first that is worth it wins, as long as all that the chunk then rests on can be read within the usual memory budget
by who reads on the same `Way` (`Pile`), and a checkout of all takes about half as long again at most for what chunks
rest on (`Reliance`): what is computed is so every other time (`Turns`). Encoded chunks are appended to a pack, which is
put when it is full.

Out, by the reader: a `Fetch` is a wish for one chunk. With where it lies and what it rests on it becomes a `Job`; jobs
that lie near each other are read in one batch, in reading order, and decoded straight to where they go.
"""

from ckptstore.chunkstore.encoding import Made, NewChunk, Piece
from ckptstore.chunkstore.jobs import Fetch
from ckptstore.chunkstore.needs import DEFAULT_BUDGET
from ckptstore.chunkstore.store import ChunkStore
from ckptstore.chunkstore.writer import ChunkWriter

__all__ = ["DEFAULT_BUDGET", "ChunkStore", "ChunkWriter", "Fetch", "Made", "NewChunk", "Piece"]
