"""What every catalog must do for verification, repair and the rewriting of packs."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.records import CommitRecord, LeftOutDocument, NewPack, Objects, Rewrite
from ckptstore.errors import SessionFenced, StepExists, StepNotFound
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
    states,
)


class CatalogUpkeepConformance:
    """Commits that come to need other packs, what is lost and comes back, and what is known of names."""

    def test_what_is_needed_of_a_pack(self, catalog: Catalog) -> None:
        pack, other = new_pack("a", "b"), new_pack("c")
        commits = [make(catalog, new_commit(0, [pack])), make(catalog, new_commit(1, [other], uses=[pack.name]))]
        needed = {found.name: (found.needed_by, found.needed_bytes) for found in catalog.packs()}
        assert needed == {pack.name: (2, 20), other.name: (1, 10)}
        assert catalog.users(pack.name) == [commit.id for commit in commits]
        assert catalog.users(other.name) == [commits[1].id]
        assert catalog.users("0" * 32) == []

    def test_a_rewritten_pack_frees_the_old_one(self, catalog: Catalog) -> None:
        old, new = new_pack("a", "b"), new_pack("a")
        commit = make(catalog, new_commit(0, [old]))
        rewriting(catalog, Rewrite([new], [old.name], {commit.id: {new.name: 10}}))
        assert states(catalog) == {old.name: "live", new.name: "live"}
        assert [pack.name for pack in catalog.packs(commit.id)] == [new.name]
        assert {chunk.pack for chunk in catalog.copies([digest("a")])} == {old.name, new.name}
        assert collect(catalog) == ([], [old.name])
        assert catalog.locate([digest("a"), digest("b")]) == {digest("a"): new.chunks[0]}
        assert catalog.check() == []

    def test_a_commit_made_meanwhile_keeps_the_old_pack(self, catalog: Catalog) -> None:
        old, new = new_pack("a", "b"), new_pack("a")
        commit = make(catalog, new_commit(0, [old]))
        make(catalog, new_commit(1, uses=[old.name]))
        rewriting(catalog, Rewrite([new], [old.name], {commit.id: {new.name: 10}}))
        assert collect(catalog) == ([], [])
        assert catalog.users(old.name) == [catalog.find("main", 1).id]

    def test_a_pinned_pack_outlives_its_rewriting(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        old, new = new_pack("a", "b"), new_pack("a")
        commit = make(catalog, new_commit(0, [old]))
        session = catalog.open_session(LEASE)
        catalog.pin(session, [digest("b")])
        rewriting(reopen(), Rewrite([new], [old.name], {commit.id: {new.name: 10}}))
        assert collect(catalog) == ([], [])
        assert catalog.commit(session, new_commit(1, uses=[old.name])).step == 1

    def test_edges_to_a_pack_that_was_needed_already_add_up(self, catalog: Catalog) -> None:
        old, other = new_pack("a"), new_pack("b", "a")
        make(catalog, new_commit(0, [other]))
        commit = make(catalog, new_commit(1, [old], uses=[other.name]))
        rewriting(catalog, Rewrite([], [old.name], {commit.id: {other.name: 10}}))
        needed = {pack.name: (pack.needed_by, pack.needed_bytes) for pack in catalog.packs()}
        assert needed == {other.name: (2, 20), old.name: (0, 0)}

    def test_a_purged_commit_is_left_out(self, catalog: Catalog) -> None:
        old, new = new_pack("a", "b"), new_pack("a")
        commit = make(catalog, new_commit(0, [old]))
        delete(catalog, "main", 0)
        collect(catalog)
        rewriting(catalog, Rewrite([new], [old.name], {commit.id: {new.name: 10}}, {commit.id: [digest("b")]}))
        assert catalog.lost() == {}
        assert collect(catalog) == ([], [new.name])

    def test_what_another_gc_has_moved_is_not_moved_again(self, catalog: Catalog) -> None:
        old, first, second = new_pack("a", "b"), new_pack("a"), new_pack("a")
        commit = make(catalog, new_commit(0, [old]))
        for new in (first, second):
            rewriting(catalog, Rewrite([new], [old.name], {commit.id: {new.name: 10}}))
        assert [pack.name for pack in catalog.packs(commit.id)] == [first.name]
        assert collect(catalog) == ([], sorted([old.name, second.name]))

    def test_a_fenced_rewrite_changes_nothing(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        old, new, gone = new_pack("a", "b"), new_pack("a"), new_pack("c")
        commit = make(catalog, new_commit(0, [old]))
        session = catalog.open_session(-1)
        catalog.reserve(session, [new.name])
        rewrite = Rewrite([new], [old.name], {commit.id: {new.name: 10}})
        reopen().fence_expired()
        with pytest.raises(SessionFenced):
            catalog.rewrite(session, rewrite)
        with pytest.raises(SessionFenced, match=gone.name):
            rewriting(catalog, Rewrite([], [old.name], {commit.id: {gone.name: 10}}))
        assert catalog.users(old.name) == [commit.id]

    def test_a_fenced_rewrite_without_packs_of_its_own_changes_nothing(
        self, catalog: Catalog, reopen: Callable[[], Catalog]
    ) -> None:
        old, other = new_pack("a"), new_pack("a", "b")
        commit = make(catalog, new_commit(0, [old]))
        make(catalog, new_commit(1, [other]))
        session = catalog.open_session(-1)
        reopen().fence_expired()
        with pytest.raises(SessionFenced, match=session):
            catalog.rewrite(session, Rewrite([], [old.name], {commit.id: {other.name: 10}}))
        assert catalog.users(old.name) == [commit.id]

    def test_a_damaged_pack_is_not_found_any_more(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        bad, good = new_pack("a", "b"), new_pack("a")
        commit = make(catalog, new_commit(0, [bad]))
        session = catalog.open_session(LEASE)
        catalog.pin(session, [digest("b")])
        self._lose_b(reopen(), commit, bad, good)
        assert catalog.locate([digest("a"), digest("b")]) == {digest("a"): good.chunks[0]}
        assert states(catalog) == {bad.name: "damaged", good.name: "live"}
        assert catalog.lost() == {digest("b"): [commit.id]}
        with pytest.raises(SessionFenced):
            catalog.commit(session, new_commit(1, uses=[bad.name]))
        assert collect(catalog) == ([], [])
        assert catalog.check() == []

    def _lose_b(self, catalog: Catalog, commit: CommitRecord, bad: NewPack, good: NewPack) -> None:
        rewrite = Rewrite([good], [bad.name], {commit.id: {good.name: 10}}, {commit.id: [digest("b")]}, damaged=True)
        rewriting(catalog, rewrite)

    def test_what_was_lost_comes_back_with_the_next_commit_of_it(self, catalog: Catalog) -> None:
        bad, good, back = new_pack("a", "b"), new_pack("a"), new_pack("b", "c")
        commit = make(catalog, new_commit(0, [bad]))
        self._lose_b(catalog, commit, bad, good)
        make(catalog, new_commit(1, [back]))
        assert catalog.lost() == {}
        assert catalog.users(back.name) == [commit.id, catalog.find("main", 1).id]
        assert {pack.name: pack.needed_bytes for pack in catalog.packs(commit.id)} == {good.name: 10, back.name: 20}
        delete(catalog, "main", 1)
        assert collect(catalog)[1] == [bad.name]
        assert digest("b") in catalog.locate([digest("b")])

    def test_what_was_lost_comes_back_with_the_same_commit(self, catalog: Catalog) -> None:
        bad, good, back, other = new_pack("a", "b"), new_pack("a"), new_pack("b"), new_pack("a")
        commit = make(catalog, new_commit(0, [bad]))
        self._lose_b(catalog, commit, bad, good)
        assert make(catalog, new_commit(0, [back, other])).id == commit.id
        assert catalog.lost() == {}
        assert {pack.name: pack.needed_bytes for pack in catalog.packs(commit.id)} == {good.name: 10, back.name: 10}
        documents, packs = collect(catalog)
        assert (len(documents), packs) == (1, sorted([bad.name, other.name]))
        assert digest("b") in catalog.locate([digest("b")])
        assert make(catalog, new_commit(0, [new_pack("b")])).id == commit.id
        assert catalog.users(back.name) == [commit.id]

    def test_a_fenced_writer_brings_nothing_back(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        bad, good, back = new_pack("a", "b"), new_pack("a"), new_pack("b")
        commit = make(catalog, new_commit(0, [bad]))
        self._lose_b(catalog, commit, bad, good)
        session = catalog.open_session(-1)
        catalog.reserve(session, [back.name])
        reopen().fence_expired()
        with pytest.raises(SessionFenced, match=back.name):
            catalog.commit(session, new_commit(0, [back]))
        assert catalog.lost() == {digest("b"): [commit.id]}

    def test_what_was_lost_is_forgotten_with_its_commit(self, catalog: Catalog) -> None:
        bad, good = new_pack("a", "b"), new_pack("a")
        commit = make(catalog, new_commit(0, [bad]))
        self._lose_b(catalog, commit, bad, good)
        self._lose_b(catalog, commit, bad, new_pack("a"))  # recorded twice
        assert catalog.lost() == {digest("b"): [commit.id]}
        delete(catalog, "main", 0)
        collect(catalog)
        assert catalog.lost() == {}
        assert states(catalog) == {}

    def test_what_nobody_needs_any_more_is_forgotten(self, catalog: Catalog) -> None:
        bad, good = new_pack("a", "b"), new_pack("a")
        commit = make(catalog, new_commit(0, [bad]))
        self._lose_b(catalog, commit, bad, good)
        catalog.forget_lost([digest("a")])
        assert catalog.lost() == {digest("b"): [commit.id]}
        assert collect(catalog) == ([], [])
        catalog.forget_lost([digest("b"), digest("c")])
        assert catalog.lost() == {}
        assert collect(catalog) == ([], [bad.name])

    def test_another_user_of_a_damaged_pack_must_be_named(self, catalog: Catalog) -> None:
        bad, good = new_pack("a", "b"), new_pack("a")
        commit = make(catalog, new_commit(0, [bad]))
        other = make(catalog, new_commit(1, uses=[bad.name]))
        with pytest.raises(SessionFenced, match=other.id):
            self._lose_b(catalog, commit, bad, good)
        assert states(catalog)[bad.name] == "live"
        assert catalog.lost() == {}

    def test_when_packs_were_verified(self, catalog: Catalog) -> None:
        packs = [new_pack("a"), new_pack("b")]
        make(catalog, new_commit(0, packs))
        assert {pack.verified for pack in catalog.packs()} == {None}
        catalog.mark_verified([packs[1].name, "0" * 32])
        found = {pack.name: pack.verified for pack in catalog.packs()}
        assert found[packs[0].name] is None
        assert found[packs[1].name] == pytest.approx(time.time(), abs=600)

    def test_a_manifest_is_given_back(self, catalog: Catalog) -> None:
        made = make(catalog, new_commit(0))
        catalog.replace_manifest(made.id, b"whole again")
        assert catalog.manifest(made.id) == b"whole again"
        with pytest.raises(StepNotFound):
            catalog.replace_manifest("0" * 32, b"")

    def test_names_that_are_gone_and_names_that_are_unknown(self, catalog: Catalog) -> None:
        new = new_commit(0, [new_pack("a")])
        kept, reserved = make(catalog, new_commit(1, [new_pack("b")])), new_commit(2, [new_pack("c")])
        make(catalog, new)
        begin(catalog, reserved)
        delete(catalog, "main", 0)
        catalog.condemn(0)
        (pack,), alien = (one.name for one in new.packs), "0" * 32
        live = [found.name for found in catalog.packs()]
        listed = Objects([new.document, kept.document, reserved.document, "alien"], [*live, pack, alien])
        assert catalog.gone(listed) == Objects([], [])
        assert catalog.unknown(listed) == Objects(["alien"], [alien])
        collect(catalog)
        assert catalog.gone(listed) == Objects([new.document], [pack])
        assert catalog.unknown(listed) == Objects(["alien"], [alien])

    def test_a_commit_supersedes_what_a_rebuild_left_out_of_its_step(self, catalog: Catalog) -> None:
        left = [LeftOutDocument("older", "main", 1), LeftOutDocument("other", "main", 2)]
        catalog.leave_out([*left, LeftOutDocument("side", "side", 1)])
        listed = Objects(["older", "other", "side"])
        assert catalog.unknown(listed).documents == ["older", "other", "side"]
        make(catalog, new_commit(1))
        assert catalog.unknown(listed) == Objects(["other", "side"], [])
        assert collect(catalog) == (["older"], [])
        assert catalog.gone(listed) == Objects(["older"], [])
        catalog.leave_out([])
        make(catalog, new_commit(2))
        assert catalog.unknown(listed) == Objects(["other", "side"], [])

    def test_who_is_refused_supersedes_nothing(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        make(catalog, new_commit(1))
        catalog.leave_out([LeftOutDocument("older", "main", 1), LeftOutDocument("other", "main", 2)])
        with pytest.raises(StepExists):
            make(catalog, new_commit(1, content="another state"))
        session = catalog.open_session(-1)
        reopen().fence_expired()
        with pytest.raises(SessionFenced):
            catalog.commit(session, new_commit(2))
        assert catalog.unknown(Objects(["older", "other"])) == Objects(["older", "other"], [])

    def test_what_is_entered_supersedes_nothing(self, catalog: Catalog) -> None:
        catalog.leave_out([LeftOutDocument("newer", "main", 1)])
        catalog.enter(new_commit(1))
        assert catalog.unknown(Objects(["newer"])) == Objects(["newer"], [])
