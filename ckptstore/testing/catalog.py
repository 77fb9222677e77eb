"""What every catalog must do, as a pytest class::

    class TestMine(CatalogConformance):
        @pytest.fixture
        def opener(self, tmp_path):
            return lambda: open_my_catalog(tmp_path)

`opener` gives a new catalog object on the same place, which is empty at first.
"""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.records import CatalogStats, Objects, TagRecord
from ckptstore.errors import RunNotFound, SessionFenced, StepExists, StepNotFound, StepProtected, TagNotFound
from ckptstore.testing.catalog_deltas import CatalogDeltasConformance
from ckptstore.testing.catalog_gc import CatalogGcConformance
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
from ckptstore.testing.catalog_upkeep import CatalogUpkeepConformance


class CatalogConformance(CatalogDeltasConformance, CatalogGcConformance, CatalogUpkeepConformance):
    """Reading, committing, names; what concerns gc, upkeep and chunks that rest on others is inherited."""

    @pytest.fixture
    def opener(self) -> Callable[[], Catalog]:
        """Opens a catalog object on one place."""
        raise NotImplementedError

    @pytest.fixture
    def reopen(self, opener: Callable[[], Catalog]) -> Iterator[Callable[[], Catalog]]:
        """Another catalog object on the same place, closed in the end."""
        opened: list[Catalog] = []

        def reopen() -> Catalog:
            opened.append(opener())
            return opened[-1]

        yield reopen
        for catalog in opened:
            catalog.close()

    @pytest.fixture
    def catalog(self, reopen: Callable[[], Catalog]) -> Catalog:
        """An empty catalog."""
        return reopen()

    def test_empty(self, catalog: Catalog) -> None:
        for ask in (catalog.runs, catalog.commits, catalog.packs, catalog.check):
            assert ask() == []
        assert catalog.steps("main") == []
        assert catalog.tags("main") == catalog.tags() == []
        assert catalog.locate([digest("a")]) == catalog.locate([]) == {}
        assert catalog.by_id("0" * 32) is None
        assert catalog.stats() == CatalogStats(0, 0, 0, {}, 0, 0, 0)
        assert collect(catalog) == ([], [])

    def test_unknown_run(self, catalog: Catalog) -> None:
        make(catalog, new_commit(run="exp-7"))
        for ask in (
            catalog.commits,
            lambda run: catalog.find(run, 0),
            lambda run: catalog.untag(run, "x"),
        ):
            with pytest.raises(RunNotFound, match="nearest: exp-7"):
                ask("exp-8")

    def test_a_commit_comes_back_as_it_was_given(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        new = new_commit(2**40, [new_pack("a")], run="Läufe/✓", metadata={"loss": 0.5, "note": ["é", None, {}]})
        made = make(catalog, new)
        for field in ("id", "run", "step", "parent", "metadata", "content", "document", "leaves", "logical_bytes"):
            assert getattr(made, field) == getattr(new, field)
        assert made.new_bytes == new.new_bytes
        assert made.created == pytest.approx(time.time(), abs=600)
        assert (made.deleted, made.tags) == (None, ())
        other = reopen()
        assert other.find(new.run, new.step) == other.find(new.run, "latest") == other.by_id(new.id) == made
        assert other.commits() == other.commits(new.run) == [made]
        assert other.manifest(new.id) == new.manifest

    def test_metadata_may_hold_nan(self, catalog: Catalog) -> None:
        make(catalog, new_commit(metadata={"loss": math.nan, "norm": math.inf}))
        found = catalog.find("main", 0).metadata
        assert math.isnan(found["loss"])
        assert found["norm"] == math.inf

    def test_it_belongs_to_the_store_that_bound_it_first(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        assert catalog.owner() is None
        catalog.bind("a" * 32)
        catalog.bind("b" * 32)
        assert catalog.owner() == reopen().owner() == "a" * 32

    def test_order(self, catalog: Catalog) -> None:
        for run, step in (("b", 3), ("a", 20), ("b", 1), ("a", 3), ("B", 0)):
            make(catalog, new_commit(step, run=run))
        assert catalog.steps("a") == [3, 20]
        assert [getattr(catalog.newest("a", most), "step", None) for most in (2, 3, 19, 20, 1 << 62)] == [
            None, 3, 3, 20, 20,
        ]  # fmt: skip
        assert catalog.newest("unknown", 5) is None
        assert [(commit.run, commit.step) for commit in catalog.commits()] == [
            ("B", 0), ("a", 3), ("a", 20), ("b", 1), ("b", 3),
        ]  # fmt: skip
        assert [(run.name, run.commits, run.latest) for run in catalog.runs()] == [
            ("B", 1, 0),
            ("a", 2, 20),
            ("b", 2, 3),
        ]
        assert catalog.find("b", "latest").step == 3

    def test_unknown_step_names_the_near_ones(self, catalog: Catalog) -> None:
        for step in (100, 200, 300, 1000):
            make(catalog, new_commit(step))
        with pytest.raises(StepNotFound, match=r"no step 201; nearest: .*200"):
            catalog.find("main", 201)
        with pytest.raises(StepNotFound):
            catalog.manifest("0" * 32)

    def test_a_run_remembers_where_it_forked(self, catalog: Catalog) -> None:
        first = make(catalog, new_commit(0, run="main"))
        fork = make(catalog, new_commit(0, run="fork", parent=first.id))
        assert (fork.parent, fork.parent_ref) == (first.id, f"{first.run}@{first.step}")
        delete(catalog, "main", 0)
        collect(catalog)
        assert catalog.by_id(first.id) is None
        assert {run.name: run.forked_from for run in catalog.runs()} == {"main": None, "fork": "main@0"}

    def test_a_run_whose_commits_are_deleted(self, catalog: Catalog) -> None:
        make(catalog, new_commit(0))
        delete(catalog, "main", 0)
        (run,) = catalog.runs()
        assert (run.commits, run.latest) == (0, None)
        with pytest.raises(StepNotFound):
            catalog.find("main", "latest")

    def test_packs(self, catalog: Catalog) -> None:
        first, second = new_pack("a", "b"), new_pack("c")
        one = make(catalog, new_commit(0, [first]))
        two = make(catalog, new_commit(1, [second], uses=[first.name, first.name]))
        needed = {pack.name: (pack.state, pack.size, pack.needed_by) for pack in catalog.packs()}
        assert needed == {first.name: ("live", 120, 2), second.name: ("live", 110, 1)}
        assert [pack.name for pack in catalog.packs(one.id)] == [first.name]
        assert {pack.name for pack in catalog.packs(two.id)} == {first.name, second.name}
        assert catalog.pack_chunks(first.name) == first.chunks
        assert catalog.pack_chunks("0" * 32) == []

    def test_locate(self, catalog: Catalog) -> None:
        pack = new_pack(*(f"chunk {i}" for i in range(10_000)))
        wanted = {chunk.digest: chunk for chunk in pack.chunks}
        session = begin(catalog, new := new_commit(0, [pack]))
        assert catalog.locate(list(wanted)) == catalog.pin(session, list(wanted)) == {}
        catalog.commit(session, new)
        assert catalog.locate([*wanted, *wanted, digest("unknown")]) == wanted
        session = catalog.open_session(LEASE)
        assert catalog.pin(session, list(wanted)) == wanted

    def test_stats(self, catalog: Catalog) -> None:
        shared, own = new_pack("a", "b"), new_pack("c")
        make(catalog, new_commit(0, [shared], run="one"))
        make(catalog, new_commit(0, [own], [shared.name], run="two"))
        make(catalog, new_commit(1, run="two"))
        delete(catalog, "two", 1)
        begin(catalog, new_commit(2, [new_pack("d")]))
        assert catalog.stats() == CatalogStats(2, 2, 1, {"live": 2, "pending": 1}, 230, 2000, 3)

    def test_the_document_of_what_was_deleted_at_a_step(self, catalog: Catalog) -> None:
        assert catalog.deleted_document("main", 0) is None
        older, new = new_commit(0, content="older"), new_commit(0, content="newer")
        for commit in (older, new):
            make(catalog, commit)
            delete(catalog, "main", 0)
        make(catalog, new_commit(0, content="newest"))
        make(catalog, new_commit(1))
        delete(catalog, "main", 1)
        assert catalog.deleted_document("main", 0) == (new.document, new.manifest)
        assert catalog.deleted_document("other", 0) is None
        collect(catalog)
        assert catalog.deleted_document("main", 0) is None

    def test_tags(self, catalog: Catalog) -> None:
        first, second = make(catalog, new_commit(0)), make(catalog, new_commit(1))
        assert tag(catalog, "best", first, "tags/1") is None
        assert tag(catalog, "good", first, "tags/2") is None
        assert catalog.find("main", "best").tags == ("best", "good")
        assert tag(catalog, "best", second, "tags/3") == "tags/1"
        best, good = TagRecord("main", "best", second.id, 1, "tags/3"), TagRecord("main", "good", first.id, 0, "tags/2")
        assert catalog.tags("main") == [best, good]
        assert [commit.tags for commit in catalog.commits("main")] == [("good",), ("best",)]
        other = make(catalog, new_commit(0, run="exp-7"))
        assert tag(catalog, "good", other, "tags/4") is None
        assert catalog.untag("main", "best") == "tags/3"
        assert catalog.tags("main") == [good]
        assert [tag.run for tag in catalog.tags()] == ["exp-7", "main"]
        for act in (lambda: catalog.untag("main", "goof"), lambda: catalog.find("main", "goof")):
            with pytest.raises(TagNotFound, match="nearest: good"):
                act()
        catalog.delete([second])
        make(catalog, new_commit(1, content="anew"))
        with pytest.raises(StepNotFound, match="step 1 of run 'main' is another now"):
            tag(catalog, "good", second, "tags/5")
        assert catalog.tags("main") == [good]

    def test_documents_of_tags_are_for_gc_when_they_do_not_record_one_any_more(self, catalog: Catalog) -> None:
        commit = make(catalog, new_commit(0))
        tag(catalog, "best", commit, "tags/1")
        assert tag(catalog, "best", commit, "tags/2", instead_of="tags/1") == "tags/1"
        for number, older in ((3, "tags/1"), (4, "")):
            with pytest.raises(SessionFenced, match="'best' of run 'main' was moved"):
                tag(catalog, "best", commit, f"tags/{number}", instead_of=older)
        with pytest.raises(SessionFenced, match="'good' of run 'main' was moved"):
            tag(catalog, "good", commit, "tags/5", instead_of="tags/1")
        everything = [f"tags/{number}" for number in range(1, 8)]
        assert catalog.unknown(Objects(everything)).documents == ["tags/6", "tags/7"]
        assert catalog.garbage(0) == Objects(["tags/1"], [])
        assert collect(catalog) == (["tags/1"], [])
        assert catalog.gone(Objects(everything)).documents == ["tags/1"]
        catalog.untag("main", "best")
        assert collect(catalog) == (["tags/2"], [])
        with pytest.raises(SessionFenced, match="tag again"):
            catalog.tag(catalog.open_session(LEASE), "best", commit, "tags/6")
        assert catalog.tags() == []

    def test_tags_are_entered_all_at_once(self, catalog: Catalog) -> None:
        commits = [make(catalog, new_commit(step)) for step in range(2)]
        tag(catalog, "best", commits[0], "tags/1")
        records = [TagRecord("main", name, commits[1].id, 1, f"tags/{name}") for name in ("best", "good")]
        for _ in range(2):
            catalog.enter_tags(records)
            assert catalog.tags("main") == records
        delete(catalog, "main", 0)
        with pytest.raises(StepProtected):
            delete(catalog, "main", 1)

    def test_a_commit_ends_its_session(self, catalog: Catalog) -> None:
        session = begin(catalog, new := new_commit(0))
        catalog.commit(session, new)
        with pytest.raises(SessionFenced):
            catalog.extend_session(session, LEASE)
        with pytest.raises(SessionFenced):
            catalog.commit(session, new_commit(1))
        catalog.end_session(session)
        assert catalog.find("main", 0).id == new.id

    def test_the_same_commit_again_is_success(self, catalog: Catalog) -> None:
        session = begin(catalog, new := new_commit(0, [new_pack("a")]))
        made = catalog.commit(session, new)
        assert catalog.commit(session, new) == made

    def test_a_commit_that_is_there_is_found_again(self, catalog: Catalog) -> None:
        session = begin(catalog, new := new_commit(0))
        assert catalog.again(session, new) is None
        made = catalog.commit(session, new)
        session = begin(catalog, same := new_commit(0, [new_pack("a")]))
        with pytest.raises(StepExists):
            catalog.again(session, new_commit(0, content="other"))
        assert catalog.again(session, same) == catalog.again(session, same) == made
        with pytest.raises(SessionFenced):
            catalog.extend_session(session, LEASE)
        assert collect(catalog) == ([same.document], [same.packs[0].name])
        assert catalog.again(session, new_commit(1)) is None

    def test_a_commit_is_entered_whole_or_not_at_all(self, catalog: Catalog) -> None:
        first, second = new_pack("a"), new_pack("b")
        catalog.enter(new_commit(0, [first]))
        other = new_commit(1, [second], [first.name])
        with pytest.raises(StepExists):
            catalog.enter(new_commit(0, [second], content="other"))
        with pytest.raises(SessionFenced):
            catalog.enter(new_commit(1, [second], ["f" * 32]))
        assert states(catalog) == {first.name: "live"}
        catalog.enter(other)
        assert states(catalog) == {first.name: "live", second.name: "live"}
        assert catalog.find("main", 1).id == other.id
        assert collect(catalog) == ([], [])

    def test_two_writers_of_one_step_with_the_same_content(
        self, catalog: Catalog, reopen: Callable[[], Catalog]
    ) -> None:
        one, two = new_commit(0, [new_pack("a")], content="same"), new_commit(0, [new_pack("a")], content="same")
        other = reopen()
        session, other_session = begin(catalog, one), begin(other, two)
        made = catalog.commit(session, one)
        assert other.commit(other_session, two) == made
        assert collect(catalog) == ([two.document], [two.packs[0].name])
        assert catalog.locate([digest("a")])[digest("a")].pack == one.packs[0].name

    def test_two_writers_of_one_step_with_other_content(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        one, two = new_commit(0, [new_pack("a")], content="one"), new_commit(0, [new_pack("b")], content="two")
        other = reopen()
        session, other_session = begin(catalog, one), begin(other, two)
        made = catalog.commit(session, one)
        with pytest.raises(StepExists, match="step 0 of run 'main'"):
            other.commit(other_session, two)
        assert catalog.commits() == [made]
        other.end_session(other_session)
        assert collect(catalog) == ([two.document], [two.packs[0].name])

    def test_a_step_can_be_made_anew(self, catalog: Catalog) -> None:
        make(catalog, new_commit(0, content="first"))
        delete(catalog, "main", 0)
        anew = make(catalog, new_commit(0, content="second"))
        assert catalog.find("main", 0) == anew
        assert len(catalog.commits("main", deleted=True)) == 2

    def test_packs_of_another_session_cannot_be_committed(self, catalog: Catalog) -> None:
        pack = new_pack("a")
        theirs = begin(catalog, new_commit(0, [pack]))
        with pytest.raises(SessionFenced):
            catalog.commit(catalog.open_session(LEASE), new_commit(1, [pack]))
        with pytest.raises(SessionFenced):
            catalog.commit(catalog.open_session(LEASE), new_commit(1, uses=[pack.name]))
        assert states(catalog) == {pack.name: "pending"}
        assert catalog.runs() == []
        catalog.end_session(theirs)

    def test_unknown_session(self, catalog: Catalog) -> None:
        with pytest.raises(SessionFenced):
            catalog.commit("0" * 32, new_commit(0))
        with pytest.raises(SessionFenced):
            catalog.reserve("0" * 32, [])
        catalog.end_session("0" * 32)

    def test_close_and_use_again(self, catalog: Catalog) -> None:
        made = make(catalog, new_commit(0))
        catalog.close()
        catalog.close()
        assert catalog.commits() == [made]

    def test_pickle(self, catalog: Catalog) -> None:
        made = make(catalog, new_commit(0))
        with closing(pickle.loads(pickle.dumps(catalog))) as other:
            assert other.commits() == [made]

    def test_threads(self, catalog: Catalog, reopen: Callable[[], Catalog]) -> None:
        catalogs = [catalog, reopen()]

        def work(step: int) -> None:
            mine = catalogs[step % 2]
            make(mine, new_commit(step, [new_pack(f"chunk {step}")]))
            assert mine.find("main", step).step == step
            collect(mine)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(40)))
        assert catalog.steps("main") == list(range(40))
        assert len(catalog.locate([digest(f"chunk {step}") for step in range(40)])) == 40
