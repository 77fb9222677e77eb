"""Damaged packs: what is whole in them, or lies elsewhere, moves into new packs; the rest is noted as lost.

What rests on a chunk that goes, and can be read all the same, is stored whole before it goes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial

from ckptstore.catalog.records import ChunkLocation, NewPack, Rewrite
from ckptstore.chunkstore import ChunkStore, Piece
from ckptstore.chunkstore.grouping import groups
from ckptstore.format.packs import TARGET_BYTES
from ckptstore.operations.manifests import any_document, document_digests
from ckptstore.operations.mending.rescue import from_pack, from_store
from ckptstore.operations.problem import DAMAGE
from ckptstore.operations.rewrite import needs_at
from ckptstore.operations.session import writing_session

_BATCH_CHUNKS = 4096


def needs_of(chunks: ChunkStore, packs: Sequence[str]) -> dict[str, set[bytes]]:
    """Commit id → the digests of the packs that it needs, for every commit that needs one of them."""
    found: dict[str, set[bytes]] = defaultdict(set)
    for pack in packs:
        held = {chunk.digest for chunk in chunks.catalog.pack_chunks(pack)}
        for commit in chunks.catalog.users(pack):
            found[commit] |= held & _digests(chunks, commit)
    return found


def _digests(chunks: ChunkStore, name: str) -> set[bytes]:
    """All that a commit id needs, so far as anybody can know."""
    commit = chunks.catalog.by_id(name)
    try:
        return document_digests(any_document(chunks, commit), chunks.digest.size) if commit is not None else set()
    except DAMAGE:  # nobody can read that commit now, but its document may be brought back
        return {chunk.digest for pack in chunks.catalog.packs(name) for chunk in chunks.catalog.pack_chunks(pack.name)}


def resting_on(
    chunks: ChunkStore, needs: Mapping[str, set[bytes]], saved: Collection[bytes], bad: set[str]
) -> dict[str, set[bytes]]:
    """Commit id → all else it needs that rests on those of the chunks which are not saved."""
    losing = {commit for commit, digests in needs.items() if not digests.issubset(saved)}
    return {commit: _resting_on_one(chunks, commit, needs[commit], saved, bad) for commit in losing}


def _resting_on_one(
    chunks: ChunkStore, commit: str, needed: set[bytes], saved: Collection[bytes], bad: set[str]
) -> set[bytes]:
    """Without what a good pack that the commit needs holds whole, or what is saved, and what rests on such alone."""
    copies = chunks.catalog.copies(sorted(_digests(chunks, commit)))
    good = {pack.name for pack in chunks.catalog.packs(commit)} - bad
    whole = {copy.digest for copy in copies if not copy.base and copy.pack in good}.union(saved)
    found = fresh = needed.difference(saved)
    while fresh:
        fresh = {copy.digest for copy in copies if fresh.intersection(copy.bases)} - found - whole
        found = found | fresh
    return found - needed


def whole_copies(chunks: ChunkStore, wanted: set[bytes], bad: set[str]) -> dict[bytes, ChunkLocation]:
    """Those of the chunks that lie whole in good packs as well."""
    copies = chunks.catalog.copies(sorted(wanted))
    return {copy.digest: copy for copy in copies if copy.pack not in bad and not copy.base}


def rescued(
    chunks: ChunkStore, packs: Sequence[str], source: ChunkStore | None, wanted: set[bytes]
) -> Iterator[tuple[bytes, memoryview]]:
    """Each chunk that is found in what is left of packs that are bad now or were earlier, in good ones, or in the other
    store.
    """
    missing = set(wanted)
    damaged = (*packs, *(pack.name for pack in chunks.catalog.packs() if pack.state == "damaged"))
    places = [partial(from_pack, chunks, pack) for pack in damaged] + [
        partial(from_store, store) for store in (chunks, source) if store is not None
    ]
    for find in places:
        if not missing:
            return
        for digest, raw in find(set(missing)):
            missing.discard(digest)
            yield digest, raw


def retire(chunks: ChunkStore, pack: str, bad: set[str], source: ChunkStore | None) -> int:
    """Let commits need good copies instead of a bad pack; how many chunks were stored anew."""
    needs = needs_of(chunks, [pack])
    with writing_session(chunks.catalog) as session:
        own, places = _saved(chunks, session, pack, bad, source, needs)
        resting = resting_on(chunks, needs, places, bad)  # to be read before what it rests on goes
        more, others = _saved(chunks, session, pack, bad, source, resting)
        own, places = own + more, places | others
        needs = {commit: digests | resting.get(commit, set()) for commit, digests in needs.items()}
        lost = {commit: sorted(digests - places.keys()) for commit, digests in needs.items()}
        kept = {commit: digests & places.keys() for commit, digests in needs.items()}
        chunks.catalog.rewrite(session, Rewrite(own, [pack], needs_at(kept, places), lost, damaged=True))
    return sum(len(new.chunks) for new in own)


def _saved(
    chunks: ChunkStore,
    session: str,
    pack: str,
    bad: set[str],
    source: ChunkStore | None,
    needs: Mapping[str, set[bytes]],
) -> tuple[list[NewPack], dict[bytes, ChunkLocation]]:
    """New packs of what could be read, and where this and what is whole in good packs lies."""
    wanted = set().union(*needs.values())
    copies = whole_copies(chunks, wanted, bad)
    own = _store(chunks, session, rescued(chunks, [pack], source, wanted - copies.keys()))
    return own, copies | {chunk.digest: chunk for new in own for chunk in new.chunks}


def heal(chunks: ChunkStore, source: ChunkStore | None) -> int:
    """Bring back what was lost earlier and can be found now; the catalog gives it to the commits that need it.

    What rests on that may be found then, and so on.
    """
    healed = 0
    while lost := set(chunks.catalog.lost()):
        with writing_session(chunks.catalog) as session:
            own = _store(chunks, session, rescued(chunks, [], source, lost))
            chunks.catalog.rewrite(session, Rewrite(own, [], {}))
        if not own:
            break
        healed += sum(len(new.chunks) for new in own)
    return healed


def _store(chunks: ChunkStore, session: str, found: Iterator[tuple[bytes, memoryview]]) -> list[NewPack]:
    with chunks.writer(session) as writer:
        for batch in groups(found, lambda item: len(item[1]), TARGET_BYTES, _BATCH_CHUNKS):
            writer.store({digest: Piece(raw, copied=True) for digest, raw in batch})
        return writer.finish()[0]
