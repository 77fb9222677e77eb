"""Rewriting packs of which commits need little any more: what they do need moves into new packs."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ckptstore.catalog.records import ChunkLocation, Rewrite
from ckptstore.chunkstore import ChunkStore, Fetch, NewChunk
from ckptstore.chunkstore.grouping import groups
from ckptstore.errors import CorruptData, SessionFenced, StepNotFound, StorageFull
from ckptstore.format.codecs import encode
from ckptstore.format.packs import TARGET_BYTES
from ckptstore.operations.manifests import commit_digests
from ckptstore.operations.session import writing_session
from ckptstore.progress import ProgressCallback, meter

_WORTH = 0.5
"""A pack is rewritten when commits need less than this share of it."""

_BATCH_PACKS = 256


@dataclass(frozen=True, slots=True)
class _Waste:
    """A pack, the payload bytes it holds, the chunks of it that commits need, and which commit needs which."""

    pack: str
    held_bytes: int
    needed: dict[bytes, ChunkLocation]
    users: dict[str, set[bytes]] = field(default_factory=dict)

    @property
    def raw_bytes(self) -> int:
        """What its needed chunks hold in memory."""
        return sum(chunk.raw_length for chunk in self.needed.values())


def wasteful_packs(chunks: ChunkStore, progress: ProgressCallback | None = None) -> list[str]:
    """Names of the packs that are worth rewriting; reads manifests only of commits whose packs may be."""
    return [waste.pack for waste in _survey(chunks, None, progress)]


def rewrite_packs(
    chunks: ChunkStore, names: Sequence[str], dealt_with: Callable[[Sequence[str]], None]
) -> tuple[int, int]:
    """Move what is needed out of those of these packs that are still wasteful, which gc can take then.

    Returns how many packs were rewritten, and the bytes of the new ones. `dealt_with` is given the packs between two
    transactions, also those that could not be.
    """
    sizes: list[tuple[int, int]] = []
    for some in groups(_survey(chunks, set(names)), lambda waste: waste.raw_bytes, TARGET_BYTES, _BATCH_PACKS):
        sizes += _rewrite_what_can_be(chunks, some)
        dealt_with([waste.pack for waste in some])
    return sum(count for count, _ in sizes), sum(size for _, size in sizes)


def _rewrite_what_can_be(chunks: ChunkStore, wastes: Sequence[_Waste]) -> Iterator[tuple[int, int]]:
    """All at once; one by one when another gc took some first, when the disk has no room for all, or when some are
    damaged, which is for verify to report.

    How many packs at a time, and the bytes of the new ones.
    """
    try:
        yield len(wastes), _rewrite(chunks, wastes)
    except (SessionFenced, CorruptData, StorageFull):
        if len(wastes) > 1:
            for waste in wastes:
                yield from _rewrite_what_can_be(chunks, [waste])


def _survey(chunks: ChunkStore, names: set[str] | None, progress: ProgressCallback | None = None) -> list[_Waste]:
    """The packs that are mostly waste, of all or of these; each counts in equal parts with the commits that need it."""
    suspects = {
        pack.name: pack.size
        for pack in chunks.catalog.packs()
        if pack.state == "live" and pack.needed_by and pack.needed_bytes < _WORTH * pack.size
        if names is None or pack.name in names
    }
    users: dict[str, list[str]] = defaultdict(list)
    for pack in suspects:
        for commit in chunks.catalog.users(pack):
            users[commit].append(pack)
    held = {pack: {chunk.digest: chunk for chunk in chunks.catalog.pack_chunks(pack)} for pack in suspects}
    found = {pack: _Waste(pack, sum(chunk.length for chunk in held[pack].values()), {}) for pack in suspects}
    counts = Counter(pack for packs in users.values() for pack in packs)
    shares = {commit: sum(suspects[pack] // counts[pack] for pack in packs) for commit, packs in users.items()}
    advance = meter(progress, "plan", sum(shares.values()))
    for commit, packs in users.items():
        for pack, digests in _needs(chunks, commit, packs, held):
            found[pack].users[commit] = digests
            found[pack].needed.update((digest, held[pack][digest]) for digest in digests)
        advance(shares[commit])
    return [waste for waste in found.values() if _is_waste(waste)]


def _needs(
    chunks: ChunkStore, commit: str, packs: Sequence[str], held: dict[str, dict[bytes, ChunkLocation]]
) -> Iterator[tuple[str, set[bytes]]]:
    try:
        digests = commit_digests(chunks, commit)
    except StepNotFound:
        return  # another gc purged it
    except CorruptData:
        digests = set().union(*(held[pack] for pack in packs))  # nobody knows: all of it
    for pack in packs:
        yield pack, digests & held[pack].keys()


def _is_waste(waste: _Waste) -> bool:
    """Framing does not count: small chunks need as much of it in any pack, which would be rewritten for ever."""
    return sum(chunk.length for chunk in waste.needed.values()) < _WORTH * waste.held_bytes


def _rewrite(chunks: ChunkStore, wastes: Sequence[_Waste]) -> int:
    """The bytes of the new packs."""
    needed = {digest: chunk for waste in wastes for digest, chunk in waste.needed.items()}
    with writing_session(chunks.catalog) as session:
        if not chunks.catalog.pin(session, list(needed)).keys() >= needed.keys():
            raise SessionFenced("gc has taken packs that were to be rewritten: collect again")
        with chunks.writer(session) as writer:
            for chunk in _fetched(chunks, wastes, needed):
                writer.append(chunk)
            own, _ = writer.finish()
        places = {chunk.digest: chunk for pack in own for chunk in pack.chunks}
        needs = needs_at(_moved(wastes), places)
        chunks.catalog.rewrite(session, Rewrite(own, [waste.pack for waste in wastes], needs))
    return sum(pack.size for pack in own)


def _fetched(chunks: ChunkStore, wastes: Sequence[_Waste], needed: Mapping[bytes, ChunkLocation]) -> list[NewChunk]:
    """The chunks, verified and encoded as they are; whole where the packs differ in what they rest on, since a commit
    that needs one of the packs may have nothing but what its own one says.
    """
    bases: dict[bytes, set[bytes]] = defaultdict(set)
    for chunk in (chunk for waste in wastes for chunk in waste.needed.values()):
        bases[chunk.digest].add(chunk.base)
    found: dict[bytes, NewChunk] = {}

    def keep(location: ChunkLocation, payload: memoryview, raw: memoryview) -> None:
        digest = location.digest
        if not location.base or bases[digest] == {location.base}:
            found[digest] = NewChunk(digest, location.codec, bytes(payload), len(raw), location.base)
        else:
            made = encode(raw)
            found[digest] = NewChunk(digest, made.codec, bytes(made.payload), len(raw))

    chunks.fetch([Fetch(digest, chunk.raw_length, "rewriting packs", relay=keep) for digest, chunk in needed.items()])
    return list(found.values())


def needs_at(digests: Mapping[str, set[bytes]], places: Mapping[bytes, ChunkLocation]) -> dict[str, Counter[str]]:
    """Commit id → pack → bytes needed of it, from each commit's digests and where these lie now."""
    needs: dict[str, Counter[str]] = {commit: Counter() for commit in digests}
    for commit, needed in digests.items():
        for digest in needed:
            needs[commit][places[digest].pack] += places[digest].length
    return needs


def _moved(wastes: Sequence[_Waste]) -> dict[str, set[bytes]]:
    """Commit id → digests that lie elsewhere now; none, for a commit that needed nothing of the old packs."""
    moved: dict[str, set[bytes]] = defaultdict(set)
    for waste in wastes:
        for commit, digests in waste.users.items():
            moved[commit] |= digests
    return moved
