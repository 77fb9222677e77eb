"""Commits on their way into another store: what it lacks is read, and stored there as its own writers would do it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from msgspec.structs import replace

from ckptstore.batching import batched
from ckptstore.catalog.records import CommitRecord, NewCommit
from ckptstore.chunkstore import ChunkStore, ChunkWriter, Fetch, Piece
from ckptstore.chunkstore.grouping import Advance, groups
from ckptstore.chunkstore.scratch import Scratch
from ckptstore.errors import CorruptData, InvalidArgument, MissingData, ObjectNotFound, StepExists, StepNotFound
from ckptstore.format import version
from ckptstore.format.codecs import BYTES, Form
from ckptstore.format.document import Origin
from ckptstore.format.forms import named_form
from ckptstore.format.manifest import Entry, Manifest, TensorEntry, check_consistent, chunk_digests, chunk_sizes
from ckptstore.operations.commit_copies import CommitCopies
from ckptstore.operations.committing.lineage import Lineage
from ckptstore.operations.committing.publish import make_commit, new_commit
from ckptstore.operations.history import Draft, commit_at
from ckptstore.operations.manifests import any_document
from ckptstore.progress import ProgressCallback, meter

_BATCH_BYTES = 64 << 20
_BATCH_CHUNKS = 4096


def push(
    source: ChunkStore,
    target: ChunkStore,
    commits: Iterable[CommitRecord],
    run: str | None,
    progress: ProgressCallback | None,
    *,
    named: bool,
) -> list[CommitRecord]:
    """The commits that the target got, each whole; into `run`, or each into the run of its name. See `Store.push`.

    One that is deleted from the source meanwhile is left out, unless somebody `named` it.
    """
    version.check_features(target.config.requires_write, "write to", target.storage.url)
    wanted = _by_step_after_parents(commits)
    same = (source.config.id, source.catalog.url) == (target.config.id, target.catalog.url)
    for commit in wanted:
        if same and commit.run == (run or commit.run):
            problem = f"{commit.address} cannot be pushed to where it is, {target.storage.url}"
            raise InvalidArgument(f"{problem}: push it to another store, or into another run")
    copier = _Copier(source, target, run, meter(progress, "push", sum(commit.logical_bytes for commit in wanted)))
    pushed = [copier.push(commit, named=named) for commit in wanted]
    return [made for made in pushed if made is not None]


def _by_step_after_parents(commits: Iterable[CommitRecord]) -> list[CommitRecord]:
    """By ascending step, but none before its parent, which may be a higher step of another run."""
    left = {commit.id: commit for commit in sorted(commits, key=lambda commit: commit.step)}
    ordered: list[CommitRecord] = []
    for commit in list(left.values()):
        chain, name = list[CommitRecord](), commit.id
        while name in left:
            chain.append(left.pop(name))
            name = chain[-1].parent or ""
        ordered += reversed(chain)
    return ordered


class _Chunk(NamedTuple):
    """A chunk of a manifest: its bytes, and where it stands there first."""

    size: int
    path: str
    entry: Entry
    number: int

    @property
    def form(self) -> Form:
        entry = self.entry
        return named_form(entry.library, entry.dtype, entry.itemsize) if isinstance(entry, TensorEntry) else BYTES


class _Copier:
    """From one store to another."""

    def __init__(self, source: ChunkStore, target: ChunkStore, run: str | None, advance: Advance) -> None:
        self._source, self._target, self._run, self._advance = source, target, run, advance
        self._copies, self._scratch = CommitCopies(source, target), Scratch()
        self._damaged = {commit for commits in target.catalog.lost().values() for commit in commits}

    def push(self, commit: CommitRecord, *, named: bool) -> CommitRecord | None:
        """The commit as the target has it now; None when it was there, or is left out."""
        try:
            return self._push(commit)
        except (ObjectNotFound, MissingData, StepNotFound) as error:
            if _is_there(self._source, commit):
                raise
            if named:
                raise StepNotFound(f"{commit.address} was deleted while it was pushed") from error
            return None

    def _push(self, commit: CommitRecord) -> CommitRecord | None:
        run = self._run or commit.run
        there = commit_at(self._target.catalog, run, commit.step)
        if there is not None and self._copies.is_copy(there, commit) and there.id not in self._damaged:
            self._advance(commit.logical_bytes)
            return None
        problem = f"step {commit.step} of run {run!r} of {self._target.storage.url} holds another state"
        refusal = StepExists(f"{problem} than {commit.address}: push into another run")
        if there is not None and self._copies.is_another(there, commit):
            raise refusal
        refuse = None if there is None else refusal
        try:
            made = make_commit(self._target, partial(self._write, commit, run), refuse=refuse)
        except StepExists:
            raise refusal from None
        return made if there is None or made.id != there.id else None

    def _write(self, commit: CommitRecord, run: str, writer: ChunkWriter) -> NewCommit:
        written = any_document(self._source, commit)
        manifest, size = written.manifest, self._source.digest.size
        check_consistent(manifest, size, f"the manifest of {commit.address}")
        parent = self._parent(commit, run)
        lineage = Lineage(self._target, _id(parent or self._newest_below(commit, run)))
        with writer:
            names = self._bring(writer, commit, _chunks(manifest, size, commit.address), lineage)
            own, needs = writer.finish()
        origin = Origin(written.original.id, commit.created)
        draft = Draft(run, commit.step, _id(parent), commit.metadata, origin)
        return new_commit(self._target, _renamed(manifest, names, size), draft, own, needs, writer.bases)

    def _parent(self, commit: CommitRecord, run: str) -> CommitRecord | None:
        """The target's copy of the commit's parent."""
        older = None if commit.parent is None else self._source.catalog.by_id(commit.parent)
        if older is None:
            return None
        runs = [name for name in (run, older.run) if name != run or older.step < commit.step]
        there = self._copies.of(older, runs)
        if there is not None:
            self._copies.learn(older, there)
        return there

    def _newest_below(self, commit: CommitRecord, run: str) -> CommitRecord | None:
        """What a commit there would be made on top of."""
        there = self._target.catalog.newest(run, commit.step - 1)
        ours = None if there is None else commit_at(self._source.catalog, commit.run, there.step)
        if there is not None and ours is not None and self._copies.is_copy(there, ours):
            self._copies.learn(ours, there)
        return there

    def _bring(
        self, writer: ChunkWriter, commit: CommitRecord, chunks: Mapping[bytes, _Chunk], lineage: Lineage
    ) -> dict[bytes, bytes]:
        """Digest of each chunk → its digest in the target, which holds it by then."""
        names = self._copies.names(chunks)
        held: set[bytes] = set()
        for some in batched([*names.values()], _BATCH_CHUNKS):
            held |= writer.rely_on(some)
        lacking = {digest: chunk for digest, chunk in chunks.items() if names.get(digest) not in held}
        self._advance(commit.logical_bytes - sum(chunk.size for chunk in lacking.values()))
        brought = writer.write(self._pieces(commit, lacking, lineage))
        return names | dict(zip(lacking, brought, strict=True))

    def _pieces(self, commit: CommitRecord, chunks: Mapping[bytes, _Chunk], lineage: Lineage) -> Iterator[Piece]:
        """The chunks, verified, of which a batch is in memory."""
        for batch in groups(chunks.items(), lambda item: item[1].size, _BATCH_BYTES, _BATCH_CHUNKS):
            read = {digest: memoryview(bytearray(chunk.size)) for digest, chunk in batch}
            wishes = [
                Fetch(digest, chunk.size, f"{commit.address} {chunk.path}", out=read[digest]) for digest, chunk in batch
            ]
            self._source.fetch(wishes, scratch=self._scratch)
            for digest, chunk in batch:
                self._advance(chunk.size)
                base = partial(lineage.base, chunk.path, chunk.entry, chunk.number)
                yield Piece(read.pop(digest), copied=True, form=chunk.form, base=base)


def _id(commit: CommitRecord | None) -> str | None:
    return None if commit is None else commit.id


def _is_there(source: ChunkStore, commit: CommitRecord) -> bool:
    found = source.catalog.by_id(commit.id)
    return found is not None and found.deleted is None


def _chunks(manifest: Manifest, digest_size: int, address: str) -> dict[bytes, _Chunk]:
    """Each chunk once, by its digest. Raises CorruptData for one of two sizes."""
    found: dict[bytes, _Chunk] = {}
    for path, entry in manifest.entries.items():
        if entry.chunks:
            pairs = zip(chunk_digests(entry, digest_size), chunk_sizes(entry), strict=True)
            for number, (digest, size) in enumerate(pairs):
                if found.setdefault(digest, _Chunk(size, path, entry, number)).size != size:
                    raise CorruptData(f"{address} {path}: its chunk {digest.hex()} is of {size} bytes, and of others")
    return found


def _renamed(manifest: Manifest, names: Mapping[bytes, bytes], digest_size: int) -> Manifest:
    entries = {
        path: replace(entry, chunks=b"".join(names[digest] for digest in chunk_digests(entry, digest_size)))
        for path, entry in manifest.entries.items()
    }
    return Manifest(entries, manifest.containers, manifest.aliases)
