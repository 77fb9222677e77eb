"""What every catalog must do with chunks that rest on others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.places import DEEPEST
from ckptstore.catalog.records import ChunkLocation, NewPack, Rewrite
from ckptstore.errors import SessionFenced
from ckptstore.testing.catalog_making import (
    LEASE,
    begin,
    collect,
    delete,
    digest,
    make,
    new_commit,
    new_pack,
    rewriting,
)


def packs_of(catalog: Catalog, *names: str) -> dict[str, str]:
    """Name → pack, of what is found for these chunks."""
    found = catalog.locate([digest(name) for name in names])
    return {name.rstrip(b"\0").decode(): location.pack for name, location in found.items()}


class CatalogDeltasConformance:
    """Looking up, pinning, committing and healing."""

    def test_a_chunk_is_found_with_what_it_rests_on(self, catalog: Catalog) -> None:
        below, above = new_pack("b", "c"), new_pack("x", "y", on=["b", "c"])
        make(catalog, new_commit(0, [below]))
        make(catalog, new_commit(1, [above], uses=[below.name]))
        found = catalog.locate([digest("x")])
        assert found == {chunk.digest: chunk for chunk in (above.chunks[0], *below.chunks)}
        assert found[digest("x")].bases == [digest("b"), digest("c")]
        assert catalog.pack_chunks(above.name) == catalog.copies([digest("x"), digest("y")]) == above.chunks

    def test_many(self, catalog: Catalog) -> None:
        names = [f"{number}" for number in range(6000)]
        frames = [chunk for name in names for chunk in new_pack(f"x{name}", on=[f"b{name}"]).chunks]
        below, above = new_pack(*(f"b{name}" for name in names)), _renamed(frames)
        make(catalog, new_commit(0, [below, above]))
        found = catalog.locate([chunk.digest for chunk in above.chunks])
        assert found == {chunk.digest: chunk for chunk in (*below.chunks, *above.chunks)}

    def test_whole_copies_come_first_and_then_old_ones(self, catalog: Catalog) -> None:
        below, oldest = new_pack("b"), new_pack("x", on=["b"])
        older, whole, last = new_pack("x", on=["b"]), new_pack("x"), new_pack("x")
        make(catalog, new_commit(0, [below, oldest]))
        make(catalog, new_commit(1, [older]))
        assert packs_of(catalog, "x") == {"x": oldest.name, "b": below.name}
        make(catalog, new_commit(2, [whole]))
        make(catalog, new_commit(3, [last]))
        assert packs_of(catalog, "x") == {"x": whole.name}
        assert packs_of(catalog, "x", "b") == {"x": whole.name, "b": below.name}

    def test_what_rests_on_nothing_is_not_found(self, catalog: Catalog) -> None:
        below, above, again = new_pack("b"), new_pack("x", "y", on=["b"]), new_pack("b")
        make(catalog, new_commit(0, [below]))
        make(catalog, new_commit(1, [above]))
        make(catalog, new_commit(2, [new_pack("z", on=["x", "unknown"])]))
        assert packs_of(catalog, "z") == {}
        delete(catalog, "main", 0)
        assert collect(catalog)[1] == [below.name]
        session = catalog.open_session(LEASE)
        assert packs_of(catalog, "x", "y", "b") == {}
        assert catalog.pin(session, [digest("x")]) == {}
        make(catalog, new_commit(3, [again]))
        assert packs_of(catalog, "x") == {"x": above.name, "b": again.name}

    def test_of_several_encodings_that_is_found_whose_bases_are_there(self, catalog: Catalog) -> None:
        older, newer, below = new_pack("x", on=["gone"]), new_pack("x", on=["b"]), new_pack("b")
        for step, pack in enumerate((older, newer, below)):
            make(catalog, new_commit(step, [pack]))
        assert packs_of(catalog, "x") == {"x": newer.name, "b": below.name}

    def test_rings_are_not_found(self, catalog: Catalog) -> None:
        packs = [new_pack("x", on=["y"]), new_pack("y", on=["x"]), new_pack("z", on=["z"]), new_pack("w", on=["x"])]
        make(catalog, new_commit(0, packs))
        assert packs_of(catalog, "w", "x", "y", "z") == {}
        whole = new_pack("y")
        make(catalog, new_commit(1, [whole]))
        assert packs_of(catalog, "w") == {"w": packs[3].name, "x": packs[0].name, "y": whole.name}

    def test_chains_have_an_end(self, catalog: Catalog) -> None:
        links = [str(number) for number in range(DEEPEST + 2)]
        make(catalog, new_commit(0, [new_pack(links[0])]))
        make(catalog, new_commit(1, [new_pack(above, on=[below]) for below, above in pairwise(links)]))
        assert packs_of(catalog, links[DEEPEST]).keys() == set(links[: DEEPEST + 1])
        assert packs_of(catalog, links[DEEPEST + 1]) == {}

    def test_what_a_pinned_chunk_rests_on_is_spared(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        below, above = new_pack("b"), new_pack("x", on=["b"])
        make(catalog, new_commit(0, [below, above]))
        session = catalog.open_session(LEASE)
        assert catalog.pin(session, [digest("x")]).keys() == {digest("x"), digest("b")}
        gc = reopen()
        delete(gc, "main", 0)
        assert collect(gc)[1] == []
        catalog.commit(session, new_commit(1, uses=[below.name, above.name]))
        assert collect(gc)[1] == []
        assert packs_of(gc, "x") == {"x": above.name, "b": below.name}

    def test_the_recheck_is_of_what_chunks_rest_on_too(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        below, above = new_pack("b"), new_pack("x", on=["b"])
        make(catalog, new_commit(0, [below]))
        session = begin(catalog, new := new_commit(1, [above], uses=[below.name]))
        gc = reopen()
        delete(gc, "main", 0)
        assert collect(gc)[1] == [below.name]
        with pytest.raises(SessionFenced, match=below.name):
            catalog.commit(session, new)

    def test_only_whole_chunks_heal(self, catalog: Catalog) -> None:
        bad, delta, whole = new_pack("x", "y"), new_pack("x", on=["b"]), new_pack("x")
        commit = make(catalog, new_commit(0, [bad]))
        _lose(catalog, commit.id, [bad], "x", "y")
        make(catalog, new_commit(1, [new_pack("b"), delta]))
        assert catalog.lost().keys() == {digest("x"), digest("y")}
        assert catalog.packs(commit.id) == []
        make(catalog, new_commit(2, [whole]))
        assert catalog.lost().keys() == {digest("y")}
        assert [pack.name for pack in catalog.packs(commit.id)] == [whole.name]

    def test_what_rests_on_what_comes_back_is_well_again(self, catalog: Catalog) -> None:
        bad, above, elsewhere = new_pack("b", "w"), new_pack("x", on=["b"]), new_pack("w", on=["b"])
        commit = make(catalog, new_commit(0, [bad, above]))
        other = make(catalog, new_commit(1, [elsewhere], uses=[bad.name]))
        _lose(catalog, commit.id, [], "x")
        _lose(catalog, other.id, [], "w")
        lost = {commit.id: [digest("b"), digest("w")], other.id: [digest("b")]}
        rewriting(catalog, Rewrite([], [bad.name], {key: {} for key in lost}, lost, damaged=True))
        make(catalog, new_commit(2, [new_pack("b")]))
        assert catalog.lost() == {digest("w"): [commit.id]}  # which does not need the pack it lies in


def _lose(catalog: Catalog, commit: str, bad: Sequence[NewPack], *names: str) -> None:
    lost = {commit: [digest(name) for name in names]}
    rewriting(catalog, Rewrite([], [pack.name for pack in bad], {commit: {}}, lost, damaged=True))


def _renamed(frames: Sequence[ChunkLocation]) -> NewPack:
    """One pack of these frames."""
    pack = new_pack(*(str(number) for number in range(len(frames))))
    chunks = [
        ChunkLocation(frame.digest, pack.name, place.offset, place.length, place.raw_length, place.codec, frame.base)
        for frame, place in zip(frames, pack.chunks, strict=True)
    ]
    return NewPack(pack.name, pack.size, chunks)
