"""What every catalog must do under gc, and when writers and gc meet at the worst moment."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.records import Objects
from ckptstore.errors import RunNotFound, SessionFenced, StepExists, StepNotFound, StepProtected
from ckptstore.testing.catalog_making import (
    LEASE,
    begin,
    collect,
    delete,
    digest,
    make,
    new_commit,
    new_pack,
    states,
    tag,
)


class CatalogGcConformance:
    """Deletion, condemning, settling, and the races of writers against gc."""

    def test_a_deleted_commit_is_gone_but_keeps_its_packs(self, catalog: Catalog) -> None:
        pack = new_pack("a")
        made = make(catalog, new_commit(0, [pack]))
        delete(catalog, "main", 0)
        assert catalog.steps("main") == []
        assert catalog.commits("main") == []
        with pytest.raises(StepNotFound):
            catalog.find("main", 0)
        (listed,) = catalog.commits("main", deleted=True)
        found = catalog.by_id(made.id)
        assert listed == found
        assert found is not None
        assert found.deleted == pytest.approx(time.time(), abs=600)
        assert catalog.manifest(made.id)
        assert catalog.condemn(grace=3600) == Objects([], [])
        assert digest("a") in catalog.locate([digest("a")])
        assert catalog.stats().deleted_commits == 1

    def test_delete_is_all_or_none(self, catalog: Catalog) -> None:
        for step in range(3):
            make(catalog, new_commit(step))
        tag(catalog, "best", catalog.find("main", 2), "tags/1")
        with pytest.raises(StepNotFound, match="no step 7"):
            delete(catalog, "main", 0, 7)
        with pytest.raises(StepProtected, match="'best' holds step 2"):
            delete(catalog, "main", 0, 2)
        with pytest.raises(RunNotFound):
            delete(catalog, "other", 0)
        assert catalog.steps("main") == [0, 1, 2]
        delete(catalog, "main", 0, 1)
        assert catalog.steps("main") == [2]

    def test_a_step_made_anew_is_not_what_was_deleted(self, catalog: Catalog) -> None:
        old, kept = make(catalog, new_commit(0)), make(catalog, new_commit(1))
        catalog.delete([old])
        anew = make(catalog, new_commit(0, content="anew"))
        with pytest.raises(StepNotFound, match="step 0 of run 'main'"):
            catalog.delete([kept, old])
        assert catalog.commits("main") == [anew, kept]

    def test_a_moved_tag_does_not_protect(self, catalog: Catalog) -> None:
        for step in range(2):
            tag(catalog, "best", make(catalog, new_commit(step)), f"tags/{step}")
        delete(catalog, "main", 0)
        assert catalog.steps("main") == [1]

    def test_restore_undoes_deletion(self, catalog: Catalog) -> None:
        made = make(catalog, new_commit(0, [new_pack("a")]))
        delete(catalog, "main", 0)
        assert catalog.restore("main", 0) == made
        assert catalog.find("main", 0) == made
        assert collect(catalog) == ([], [])

    def test_restore_refuses(self, catalog: Catalog) -> None:
        make(catalog, new_commit(0))
        with pytest.raises(StepNotFound, match="no deleted step 0"):
            catalog.restore("main", 0)
        with pytest.raises(RunNotFound):
            catalog.restore("other", 0)
        delete(catalog, "main", 0)
        make(catalog, new_commit(0, content="anew"))
        with pytest.raises(StepExists):
            catalog.restore("main", 0)
        collect(catalog)
        with pytest.raises(StepNotFound):
            catalog.restore("main", 0)

    def test_restore_takes_the_last_deleted(self, catalog: Catalog) -> None:
        for content in ("first", "second"):
            make(catalog, new_commit(0, content=content))
            delete(catalog, "main", 0)
        assert catalog.restore("main", 0).content == digest("second")

    def test_purge_takes_what_no_other_commit_needs(self, catalog: Catalog) -> None:
        shared, own = new_pack("shared"), new_pack("own")
        old = make(catalog, new_commit(0, [shared, own]))
        kept = make(catalog, new_commit(1, uses=[shared.name], parent=old.id))
        delete(catalog, "main", 0)
        assert collect(catalog) == ([old.document], [own.name])
        assert catalog.by_id(old.id) is None
        with pytest.raises(StepNotFound):
            catalog.manifest(old.id)
        assert (catalog.find("main", 1).parent, catalog.find("main", 1).parent_ref) == (None, None)
        assert catalog.locate([digest("shared"), digest("own")]).keys() == {digest("shared")}
        assert catalog.pack_chunks(own.name) == []
        assert states(catalog) == {shared.name: "live"}
        assert [pack.name for pack in catalog.packs(kept.id)] == [shared.name]
        assert catalog.check() == []

    def test_grace_is_counted_from_deletion(self, catalog: Catalog) -> None:
        make(catalog, new_commit(0, [new_pack("a")]))
        delete(catalog, "main", 0)
        assert collect(catalog, grace=60) == ([], [])
        documents, packs = collect(catalog, grace=0)
        assert len(documents) == len(packs) == 1

    def test_garbage_lists_what_writers_left_whose_lease_is_over(self, catalog: Catalog) -> None:
        unneeded, left = new_pack("a"), new_pack("b")
        make(catalog, new_commit(0, [unneeded]))
        session = begin(catalog, new_commit(1, [left]))
        catalog.pin(session, [digest("a")])
        delete(catalog, "main", 0)
        assert [*catalog.garbage(0).packs] == []
        catalog.extend_session(session, -1)
        garbage = catalog.garbage(0)
        assert set(garbage.packs) == {unneeded.name, left.name}
        assert len(garbage.documents) == 2
        assert [*catalog.condemn(0).packs] == []
        assert catalog.fence_expired() == 1
        assert catalog.condemn(0) == garbage

    def test_garbage_says_what_condemn_does(self, catalog: Catalog) -> None:
        pack, left = new_pack("a"), new_pack("b")
        made = make(catalog, new_commit(0, [pack]))
        catalog.end_session(begin(catalog, new_commit(1, [left])))
        delete(catalog, "main", 0)
        garbage = catalog.garbage(0)
        assert catalog.garbage(0) == garbage
        assert catalog.by_id(made.id) is not None
        assert states(catalog) == {pack.name: "live", left.name: "pending"}
        assert catalog.condemn(0) == garbage
        assert catalog.garbage(0) == garbage
        assert set(garbage.packs) == {pack.name, left.name}
        assert made.document in garbage.documents
        assert len(garbage.documents) == 2

    def test_many_go_in_parts(self, catalog: Catalog) -> None:
        packs = [new_pack(*(f"{step}-{number}" for number in range(300))) for step in range(300)]
        for step in range(0, 300, 2):
            make(catalog, new_commit(step, packs[step : step + 2]))
        for step in range(1, 300, 2):
            make(catalog, new_commit(step, uses=[packs[step].name, packs[0].name]))
        for step in range(299):
            delete(catalog, "main", step)
        first = catalog.condemn(0)
        documents, gone = collect(catalog)
        assert len(first.documents) < len(documents) == 299
        assert set(gone) == {pack.name for pack in packs[1:299]}
        assert states(catalog) == {packs[0].name: "live", packs[299].name: "live"}
        assert catalog.check() == []
        assert collect(catalog) == ([], [])

    def test_an_interrupted_round_is_condemned_again(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        packs = [new_pack("a"), new_pack("b")]
        made = make(catalog, new_commit(0, packs))
        delete(catalog, "main", 0)
        first = catalog.condemn(0)
        again = reopen()
        assert again.condemn(0) == first
        again.settle(Objects(packs=[packs[0].name]))
        assert again.condemn(0) == Objects([made.document], [packs[1].name])
        again.settle(first)
        again.settle(first)
        assert again.condemn(0) == Objects([], [])
        assert again.packs() == []

    def test_settle_touches_only_what_is_condemned(self, catalog: Catalog) -> None:
        pack = new_pack("a")
        made = make(catalog, new_commit(0, [pack]))
        new = new_commit(1, [new_pack("b")])
        session = begin(catalog, new)
        catalog.settle(Objects([made.document, new.document], [pack.name, new.packs[0].name]))
        assert states(catalog) == {pack.name: "live", new.packs[0].name: "pending"}
        catalog.end_session(session)
        assert catalog.condemn(0) == Objects([new.document], [new.packs[0].name])

    def test_what_an_ended_session_reserved_is_collected(self, catalog: Catalog) -> None:
        new = new_commit(0, [new_pack("a")])
        session = begin(catalog, new)
        assert collect(catalog) == ([], [])
        catalog.end_session(session)
        catalog.end_session(session)
        assert collect(catalog) == ([new.document], [new.packs[0].name])

    def test_what_a_commit_reserved_in_vain_is_collected(self, catalog: Catalog) -> None:
        new = new_commit(0, [new_pack("a")])
        session = begin(catalog, new)
        catalog.reserve(session, ["0" * 32])
        catalog.commit(session, new)
        assert collect(catalog) == ([], ["0" * 32])

    def test_only_expired_sessions_are_fenced(self, catalog: Catalog) -> None:
        expired, open_one = catalog.open_session(-1), catalog.open_session(LEASE)
        extended = catalog.open_session(-1)
        catalog.extend_session(extended, LEASE)
        assert catalog.fence_expired() == 1
        assert catalog.fence_expired() == 0
        with pytest.raises(SessionFenced):
            catalog.extend_session(expired, LEASE)
        catalog.extend_session(open_one, LEASE)
        catalog.extend_session(extended, LEASE)

    def test_time_alone_takes_nothing_from_a_writer(self, catalog: Catalog) -> None:
        new = new_commit(0, [new_pack("a")])
        session = begin(catalog, new)
        catalog.extend_session(session, -1)
        assert collect(catalog) == ([], [])
        assert catalog.commit(session, new).id == new.id

    def test_a_fenced_writer_that_wakes_up_cannot_commit(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        new = new_commit(0, [new_pack("a")])
        session = begin(catalog, new)
        catalog.extend_session(session, -1)
        gc = reopen()
        assert gc.fence_expired() == 1
        for act in (
            lambda: catalog.commit(session, new),
            lambda: catalog.pin(session, [digest("a")]),
            lambda: catalog.reserve(session, ["0" * 32]),
            lambda: catalog.extend_session(session, LEASE),
        ):
            with pytest.raises(SessionFenced):
                act()
        assert catalog.runs() == []
        assert collect(gc) == ([new.document], [new.packs[0].name])

    def test_a_pin_spares_a_pack_while_its_session_is_open(
        self, catalog: Catalog, reopen: Callable[[], Catalog]
    ) -> None:
        pack = new_pack("a")
        make(catalog, new_commit(0, [pack]))
        session = catalog.open_session(LEASE)
        assert catalog.pin(session, [digest("a"), digest("unknown")])[digest("a")] == pack.chunks[0]
        assert catalog.pin(session, [digest("a")]).keys() == {digest("a")}
        gc = reopen()
        delete(gc, "main", 0)
        assert collect(gc)[1] == []
        new = new_commit(1, uses=[pack.name])
        assert catalog.commit(session, new).id == new.id
        assert collect(gc) == ([], [])
        assert gc.locate([digest("a")])

    def test_pins_go_with_the_session(self, catalog: Catalog) -> None:
        pack = new_pack("a")
        make(catalog, new_commit(0, [pack]))
        session = catalog.open_session(LEASE)
        catalog.pin(session, [digest("a")])
        delete(catalog, "main", 0)
        catalog.end_session(session)
        assert collect(catalog)[1] == [pack.name]

    def test_the_recheck_catches_dedup_against_gc(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        old, own = new_pack("a"), new_pack("b")
        make(catalog, new_commit(0, [old]))
        new = new_commit(1, [own], uses=[old.name])
        session = begin(catalog, new)
        assert catalog.locate([digest("a")])[digest("a")].pack == old.name  # found, but not pinned
        gc = reopen()
        delete(gc, "main", 0)
        assert collect(gc)[1] == [old.name]
        with pytest.raises(SessionFenced, match=old.name):
            catalog.commit(session, new)
        assert catalog.steps("main") == []
        catalog.end_session(session)
        assert collect(gc)[1] == [own.name]

    def test_condemned_is_not_live(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        pack = new_pack("a")
        make(catalog, new_commit(0, [pack]))
        session = catalog.open_session(LEASE)
        delete(catalog, "main", 0)
        reopen().condemn(0)
        assert catalog.pin(session, [digest("a")]) == {}
        with pytest.raises(SessionFenced):
            catalog.commit(session, new_commit(1, uses=[pack.name]))
        assert states(catalog) == {pack.name: "condemned"}

    def test_a_chunk_in_two_packs_outlives_one_of_them(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        first, second = new_pack("a"), new_pack("a")
        one, two = new_commit(0, [first]), new_commit(1, [second])
        other = reopen()
        session, other_session = begin(catalog, one), begin(other, two)
        assert catalog.commit(session, one).step == 0
        assert other.commit(other_session, two).step == 1
        delete(catalog, "main", 0)
        assert collect(catalog)[1] == [first.name]
        assert catalog.locate([digest("a")]) == {digest("a"): second.chunks[0]}
        assert catalog.check() == []
