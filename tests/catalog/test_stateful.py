"""Random calls on a catalog, beside a model of dicts and a storage of which gc removes objects."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ckptstore.catalog.opening import open_catalog, sqlite_url
from ckptstore.catalog.records import NewCommit, Objects
from ckptstore.errors import NotFound, SessionFenced, StepExists, StepNotFound, StepProtected, TagNotFound
from ckptstore.testing.catalog_making import LEASE, delete, digest, new_commit, new_pack, tag

CHUNKS = ["a", "b", "c"]
STEPS = st.integers(0, 2)
TAGS = st.sampled_from(["best", "good"])


@dataclass
class Writer:
    new: NewCommit
    open: bool = True
    pinned: set[str] = field(default_factory=set)


class CatalogMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.folder = tempfile.mkdtemp()
        self.catalog = open_catalog(sqlite_url(f"{self.folder}/catalog.sqlite"), create=True)
        self.writers: dict[str, Writer] = {}
        self.commits: dict[str, NewCommit] = {}  # live and deleted, by id
        self.deleted: list[str] = []
        self.tags: dict[str, tuple[int, str]] = {}
        self.state: dict[str, str] = {}
        self.chunks: dict[str, set[bytes]] = {}
        self.objects: set[str] = set()

    def teardown(self):
        assert self.catalog.check() == []
        self.catalog.close()
        shutil.rmtree(self.folder)

    def live(self):
        return {new.step: new for name, new in self.commits.items() if name not in self.deleted}

    def needed(self):
        return {pack for new in self.commits.values() for pack in self.packs_of(new)}

    def packs_of(self, new):
        return set(new.needs)

    def pack_of(self, chunk):
        holding = [name for name, state in self.state.items() if state == "live" and chunk in self.chunks[name]]
        return holding[0] if holding else None

    def garbage(self):
        pinned = {pack for writer in self.writers.values() if writer.open for pack in writer.pinned}
        reserved = {pack.name for writer in self.writers.values() if writer.open for pack in writer.new.packs}
        kept = {p for name, new in self.commits.items() if name not in self.deleted for p in self.packs_of(new)}
        useless = {p for p, state in self.state.items() if state == "live"} - kept - pinned
        left = {p for p, state in self.state.items() if state == "pending"} - reserved
        return useless | left | {p for p, state in self.state.items() if state == "condemned"}

    @rule(step=STEPS, wanted=st.sets(st.sampled_from(CHUNKS)), content=st.sampled_from("xy"), pins=st.booleans())
    def start(self, step, wanted, content, pins):
        self.begin(step, wanted, content, pins)

    def begin(self, step, wanted, content, pins):
        """Dedup what is there, reserve the rest and put it."""
        session = self.catalog.open_session(LEASE)
        digests = [digest(name) for name in sorted(wanted)]
        found = self.catalog.pin(session, digests) if pins else self.catalog.locate(digests)
        assert {chunk: self.pack_of(chunk) for chunk in digests if self.pack_of(chunk)} == {
            chunk: location.pack for chunk, location in found.items()
        }
        missing = [name for name in sorted(wanted) if digest(name) not in found]
        uses = {location.pack for location in found.values()}
        new = new_commit(step, [new_pack(*missing)] if missing else [], sorted(uses), content=content)
        self.catalog.reserve(session, [pack.name for pack in new.packs], document=new.document)
        self.writers[session] = Writer(new, pinned=uses if pins else set())
        for pack in new.packs:
            self.state[pack.name] = "pending"
            self.chunks[pack.name] = {chunk.digest for chunk in pack.chunks}
            self.objects.add(pack.name)
        self.objects.add(new.document)
        return session

    @rule(step=STEPS, wanted=st.sets(st.sampled_from(CHUNKS), min_size=1), content=st.sampled_from("xy"))
    def make(self, step, wanted, content):
        self.finish(self.begin(step, wanted, content, pins=True))

    @precondition(lambda self: self.writers)
    @rule(data=st.data())
    def commit(self, data):
        self.finish(data.draw(st.sampled_from(list(self.writers))))

    def finish(self, session):
        writer = self.writers[session]
        new, taken = writer.new, self.live().get(writer.new.step)
        if taken is not None and taken.content != new.content:
            with pytest.raises(StepExists):
                self.catalog.commit(session, new)
            return
        if taken is None and not (
            writer.open
            and all(self.state[pack] == "live" for pack in new.needs.keys() - {own.name for own in new.packs})
        ):
            with pytest.raises(SessionFenced):
                self.catalog.commit(session, new)
            return
        assert self.catalog.commit(session, new).id == (taken or new).id
        writer.open = False
        if taken is None:
            self.commits[new.id] = new
            self.state.update((pack.name, "live") for pack in new.packs)

    @precondition(lambda self: self.writers)
    @rule(data=st.data(), by_gc=st.booleans())
    def end(self, data, by_gc):
        session = data.draw(st.sampled_from(list(self.writers)))
        writer = self.writers[session]
        if by_gc and writer.open:
            self.catalog.extend_session(session, -1)
            assert self.catalog.fence_expired() == 1
        else:
            self.catalog.end_session(session)
        writer.open = False

    @rule(step=STEPS)
    def delete(self, step):
        if step not in self.live():
            with pytest.raises(NotFound):
                delete(self.catalog, "main", step)
        elif step in {step for step, _ in self.tags.values()}:
            with pytest.raises(StepProtected):
                delete(self.catalog, "main", step)
        else:
            delete(self.catalog, "main", step)
            self.deleted.append(self.live()[step].id)

    @precondition(lambda self: self.live())
    @rule()
    def delete_all(self):
        for step in set(self.live()) - {step for step, _ in self.tags.values()}:
            self.delete(step)

    @precondition(lambda self: self.commits)
    @rule(step=STEPS)
    def restore(self, step):
        last = next((name for name in reversed(self.deleted) if self.commits[name].step == step), None)
        if last is None or step in self.live():
            with pytest.raises(StepNotFound if last is None else StepExists):
                self.catalog.restore("main", step)
        else:
            assert self.catalog.restore("main", step).id == last
            self.deleted.remove(last)

    @precondition(lambda self: self.commits)
    @rule(name=TAGS, data=st.data())
    def tag(self, name, data):
        """Also of deleted commits, whose step may have been made anew."""
        commit = self.catalog.by_id(data.draw(st.sampled_from(list(self.commits))))
        assert commit is not None
        if commit.id in self.deleted:
            with pytest.raises(StepNotFound):
                tag(self.catalog, name, commit, uuid.uuid4().hex)
        else:
            document = f"tags/{uuid.uuid4().hex}"
            self.objects.add(document)
            assert tag(self.catalog, name, commit, document) == self.tags.get(name, (0, None))[1]
            self.tags[name] = commit.step, document

    @precondition(lambda self: self.commits)
    @rule(name=TAGS)
    def untag(self, name):
        if name in self.tags:
            assert self.catalog.untag("main", name) == self.tags.pop(name)[1]
        else:
            with pytest.raises(TagNotFound):
                self.catalog.untag("main", name)

    @rule(data=st.data())
    def collect(self, data):
        """A gc round that may be interrupted between any two steps."""
        garbage = self.catalog.garbage(0)
        assert self.catalog.condemn(0) == garbage
        assert set(garbage.packs) == self.garbage()
        self.state.update(dict.fromkeys(garbage.packs, "condemned"))
        for name in self.deleted:
            del self.commits[name]
        self.deleted.clear()
        found = [pack for pack in self.state if pack in garbage.packs]  # their names are random, and tell no order
        removed = found[: data.draw(st.integers(0, len(found)))]
        self.objects -= {*garbage.documents, *removed}
        settled = removed[: data.draw(st.integers(0, len(removed)))]
        self.catalog.settle(Objects(garbage.documents, settled))
        self.state.update(dict.fromkeys(settled, "deleted"))

    @rule()
    def reopen(self):
        self.catalog.close()

    @invariant()
    def nothing_is_lost(self):
        for new in self.commits.values():
            assert self.packs_of(new) | {new.document} <= self.objects
            assert self.catalog.manifest(new.id) == new.manifest

    @invariant()
    def the_catalog_says_what_the_model_says(self):
        assert self.catalog.steps("main") == sorted(self.live())
        assert {commit.id for commit in self.catalog.commits(deleted=True)} == set(self.commits)
        assert {tag.name: (tag.step, tag.document) for tag in self.catalog.tags("main")} == self.tags
        existing = {name: state for name, state in self.state.items() if state != "deleted"}
        packs = self.catalog.packs()
        assert {pack.name: pack.state for pack in packs} == existing
        assert {pack.name for pack in packs if pack.needed_by} == self.needed()

    @invariant()
    def nothing_is_leaked(self):
        open_documents = {writer.new.document for writer in self.writers.values() if writer.open}
        owned = {new.document for new in self.commits.values()} | open_documents
        owned |= {document for _, document in self.tags.values()}
        documents = {name for name in self.objects if "/" in name}
        purged = {self.commits[name].document for name in self.deleted}
        assert documents - owned | purged == set(self.catalog.garbage(0).documents)


TestCatalogMachine = CatalogMachine.TestCase
TestCatalogMachine.settings = settings(
    max_examples=30, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
