"""Which commits two stores both have, and what the second one calls the chunks of the first.

Where both make digests alike, these decide. Where they do not, a commit that was pushed names the one it is a copy of;
and as the leaves of both have their chunks in the same places, both digests of each chunk are known.
"""

from __future__ import annotations

from collections.abc import Iterable

from ckptstore.catalog.records import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.format.manifest import chunk_digests
from ckptstore.operations.history import commit_at
from ckptstore.operations.manifests import any_document
from ckptstore.operations.problem import DAMAGE


class CommitCopies:
    """Of commits of a source in a target."""

    def __init__(self, source: ChunkStore, target: ChunkStore) -> None:
        self._source, self._target = source, target
        self._alike = source.digest.compute(b"") == target.digest.compute(b"")
        self._names: dict[bytes, bytes] = {}

    def is_copy(self, there: CommitRecord, commit: CommitRecord) -> bool:
        """Whether a commit of the target is known to be that of the source; no chunk is read to find out."""
        if self._alike:
            return there.content == commit.content
        made_as = origin(self._target, there)
        return made_as is not None and made_as == origin(self._source, commit)

    def is_another(self, there: CommitRecord, commit: CommitRecord) -> bool:
        """Whether a commit of the target is known to have another content."""
        return self._alike and there.content != commit.content

    def of(self, commit: CommitRecord, runs: Iterable[str]) -> CommitRecord | None:
        """The copy of a commit that the target has in one of these runs, if any."""
        found = (commit_at(self._target.catalog, run, commit.step) for run in dict.fromkeys(runs))
        return next((there for there in found if there is not None and self.is_copy(there, commit)), None)

    def names(self, digests: Iterable[bytes]) -> dict[bytes, bytes]:
        """Digest in the source → in the target, of those chunks that the target may have."""
        if self._alike:
            return {digest: digest for digest in digests}
        return {digest: self._names[digest] for digest in digests if digest in self._names}

    def learn(self, commit: CommitRecord, there: CommitRecord) -> None:
        """The names of chunks that a commit and its copy give."""
        if self._alike:
            return
        ours = any_document(self._source, commit).manifest.entries
        theirs = any_document(self._target, there).manifest.entries
        for path in ours.keys() & theirs.keys():
            mine = chunk_digests(ours[path], self._source.digest.size)
            self._names.update(zip(mine, chunk_digests(theirs[path], self._target.digest.size), strict=False))


def origin(chunks: ChunkStore, commit: CommitRecord) -> str | None:
    """The id under which a commit was made, in whatever store; None for one that is damaged, as verify reports."""
    try:
        written = any_document(chunks, commit)
    except DAMAGE:
        return None
    return written.original.id
