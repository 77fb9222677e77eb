"""Checking that everything stored is what was written: the catalog, every manifest document, every byte of packs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import msgspec

from ckptstore.catalog.base import CommitRecord, PackRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.errors import CkptStoreError, CorruptData, ObjectNotFound
from ckptstore.format import document, packs
from ckptstore.format.codecs import codec_numbered
from ckptstore.format.document import Document
from ckptstore.format.manifest import check_consistent, chunk_digests
from ckptstore.format.packs import pack_key
from ckptstore.operations.manifests import any_document, document_digests

_WORKERS = 2


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is not as it was written.

    Attributes:
        object: the storage key, or "catalog".
        detail: what is wrong.
        digest: the chunk that is lost, when one is.
        affected: the leaves hit, as "run@step path".
    """

    object: str
    detail: str
    digest: bytes = b""
    affected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification looked at, and what it found."""

    commits: int
    packs: int
    bytes: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems


def verify(chunks: ChunkStore, advance: Advance = ignore) -> VerifyReport:
    """Check all of it, reading every byte. Damage is reported, never raised; what gc takes meanwhile is no damage."""
    commits = chunks.catalog.commits(deleted=True)
    live = [pack for pack in chunks.catalog.packs() if pack.state == "live"]
    found: list[Problem] = [Problem("catalog", detail) for detail in chunks.catalog.check()]
    wanted: set[bytes] = set()
    for commit in commits:
        problems = list(_check_document(chunks, commit, wanted))
        if problems and chunks.catalog.by_id(commit.id) is not None:
            found += problems
    with ThreadPoolExecutor(_WORKERS) as pool:
        for problems in pool.map(lambda pack: list(_check_pack(chunks, pack, advance)), live):
            found += problems
    found = _without_taken_packs(chunks, found)
    missing = wanted - chunks.catalog.locate(list(wanted)).keys()
    users = _users(chunks, missing | {problem.digest for problem in found if problem.digest})
    found += [
        Problem("catalog", f"no live pack holds the chunk {digest.hex()}", digest) for digest in missing & users.keys()
    ]
    blamed = tuple(replace(problem, affected=users.get(problem.digest, problem.affected)) for problem in found)
    return VerifyReport(len(commits), len(live), sum(pack.size for pack in live), blamed)


def _check_document(chunks: ChunkStore, commit: CommitRecord, wanted: set[bytes]) -> Iterator[Problem]:
    """Adds the digests of the commit's chunks to `wanted`."""
    here = f"{commit.run}@{commit.step}"
    kept = b""
    try:
        kept = chunks.catalog.manifest(commit.id)
        written = document.decode(kept, f"of {here} in the catalog")
        check_consistent(written.manifest, chunks.digest.size, f"the manifest of {here}")
        wanted |= document_digests(written, chunks.digest.size)
        parent = written.parent if commit.parent is not None else None  # a purged parent is forgotten
        if _identity(commit) != _identity(msgspec.structs.replace(written, parent=parent)):
            yield Problem("catalog", f"the record of {here} contradicts its manifest", affected=(here,))
        if chunks.digest.compute(document.encode_manifest(written.manifest)) != written.content:
            yield Problem("catalog", f"the manifest of {here} does not have its digest", affected=(here,))
    except CkptStoreError as error:
        yield Problem("catalog", str(error), affected=(here,))
    try:
        stored = chunks.storage.get(commit.document)
        wanted |= document_digests(document.decode(stored, commit.document), chunks.digest.size)
        if kept and stored != kept:
            yield Problem(commit.document, f"differs from the catalog's manifest of {here}", affected=(here,))
    except CkptStoreError as error:
        yield Problem(commit.document, str(error), affected=(here,))


def _identity(commit: CommitRecord | Document) -> tuple[object, ...]:
    metadata = json.dumps(commit.metadata, sort_keys=True)  # as text, since NaN is not equal to itself
    return commit.id, commit.run, commit.step, commit.parent, commit.content, metadata


def _check_pack(chunks: ChunkStore, pack: PackRecord, advance: Advance) -> Iterator[Problem]:
    key = pack_key(pack.name)
    recorded = {location.digest: location for location in chunks.catalog.pack_chunks(pack.name)}
    try:
        data = memoryview(chunks.storage.get(key))
    except CkptStoreError as error:
        missing = isinstance(error, ObjectNotFound)
        detail = "is missing" if missing else str(error)
        yield from (Problem(key, detail, digest) for digest in recorded)
        return
    advance(len(data))
    if len(data) != pack.size:
        yield Problem(key, f"has {len(data)} bytes, the catalog says {pack.size}")
    damaged = set()
    for frame, detail in packs.problems(data, pack.name):
        damaged.add(frame.digest if frame else b"")
        yield Problem(key, detail, frame.digest if frame else b"")
    for digest, location in recorded.items():
        if digest in damaged:
            continue
        try:
            raw = memoryview(bytearray(location.raw_length))
            payload = data[location.offset : location.offset + location.length]
            codec_numbered(location.codec).decode(payload, raw)
            if chunks.digest.compute(raw) != digest:
                raise CorruptData(f"the chunk at {location.offset} does not have the digest {digest.hex()}")
        except CkptStoreError as error:
            yield Problem(key, str(error), digest)


def _without_taken_packs(chunks: ChunkStore, found: list[Problem]) -> list[Problem]:
    if not found:
        return found
    known = {pack_key(pack.name) for pack in chunks.catalog.packs() if pack.state == "live"}
    return [problem for problem in found if not problem.object.startswith("packs/") or problem.object in known]


def _users(chunks: ChunkStore, digests: set[bytes]) -> dict[bytes, tuple[str, ...]]:
    """Which leaves of the commits that exist now need these chunks; manifests are read once more, one at a time."""
    users: dict[bytes, list[str]] = defaultdict(list)
    for commit in chunks.catalog.commits(deleted=True) if digests else ():
        try:
            written = any_document(chunks, commit)
        except CkptStoreError:
            continue  # reported already
        for path, entry in written.manifest.entries.items():
            for digest in digests.intersection(chunk_digests(entry, chunks.digest.size)):
                users[digest].append(f"{commit.run}@{commit.step} {path}")
    return {digest: tuple(paths) for digest, paths in users.items()}
