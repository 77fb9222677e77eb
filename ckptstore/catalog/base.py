"""The seam between ckptstore and the database that says what exists.

Time affects liveness, never safety. Each method is one short transaction under one per-store lock when it writes;
none does I/O on the storage. Digests are the bytes of the store's digest function; packs and commits go by their
random 32-hex names.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ckptstore.catalog.records import (
    CatalogStats,
    ChunkLocation,
    CommitRecord,
    LeftOutDocument,
    NewCommit,
    Objects,
    PackRecord,
    Rewrite,
    RunRecord,
    TagRecord,
)


class Catalog(Protocol):
    """What exists in one store."""

    @property
    def url(self) -> str:
        """Where this is, for messages; never holds a password."""

    def close(self) -> None:
        """Give back connections. The catalog opens them again when used."""

    # whose it is

    def owner(self) -> str | None:
        """The id of the store that this is the catalog of; None before the first `bind`."""

    def bind(self, store: str) -> None:
        """Become the catalog of a store, unless it is one's already; whose it is then, `owner` says."""

    # reading

    def runs(self) -> list[RunRecord]:
        """Every run, by name."""

    def steps(self, run: str) -> list[int]:
        """Live steps of a run, ascending; empty for a run that does not exist."""

    def newest(self, run: str, most: int) -> CommitRecord | None:
        """The live commit at the highest step up to `most`, or None; also for a run that does not exist."""

    def commits(self, run: str | None = None, *, deleted: bool = False) -> list[CommitRecord]:
        """Live commits (with `deleted`, the deleted ones too), by run, then step. RunNotFound for an unknown run."""

    def find(self, run: str, step: int | str) -> CommitRecord:
        """The live commit at a step, a tag or "latest". Raises RunNotFound, StepNotFound, TagNotFound."""

    def by_id(self, commit: str) -> CommitRecord | None:
        """A commit, live or deleted, by id."""

    def manifest(self, commit: str) -> bytes:
        """The manifest document of a commit id. Raises StepNotFound when it was purged."""

    def deleted_document(self, run: str, step: int) -> tuple[str, bytes] | None:
        """Storage key and manifest document of the last commit that was deleted at a step, and is still there."""

    def locate(self, digests: Sequence[bytes]) -> dict[bytes, ChunkLocation]:
        """Where each chunk lies, in a live pack, and with it every chunk that it rests on.

        Left out is what is unknown, and what rests on such. Of several copies, whole ones come first.
        """

    def packs(self, commit: str | None = None) -> list[PackRecord]:
        """Packs that are not deleted; with a commit id, only those it needs."""

    def pack_chunks(self, pack: str) -> list[ChunkLocation]:
        """The locations recorded for one pack."""

    def users(self, pack: str) -> list[str]:
        """Ids of the commits, live or deleted, that need a pack."""

    def copies(self, digests: Sequence[bytes]) -> list[ChunkLocation]:
        """Every place in a live pack where one of these chunks lies."""

    def lost(self) -> dict[bytes, list[str]]:
        """Chunks that commits need and no pack holds any more, as `rewrite` recorded: digest → ids of the commits."""

    def forget_lost(self, digests: Sequence[bytes]) -> None:
        """No commit needs these lost chunks any more: all that rested on them is whole by now."""

    def gone(self, listed: Objects) -> Objects:
        """Which of these are known to have been removed. Names are never used again, so they may be removed again."""

    def unknown(self, listed: Objects) -> Objects:
        """Which of these the catalog never heard of."""

    def stats(self) -> CatalogStats:
        """Counts of everything."""

    def check(self) -> list[str]:
        """What is wrong inside the database itself, a line each; empty when nothing is."""

    def damage(self, *, chunks: bool) -> list[str]:
        """What is wrong with the file of the database where gc decides by it, a line each; with `chunks`, also where it
        looks up chunks, which takes longer.
        """

    # a writer's session

    def open_session(self, lease_seconds: float) -> str:
        """A new session's id, open until the lease runs out on the database's clock."""

    def extend_session(self, session: str, lease_seconds: float) -> None:
        """Heartbeat. Raises SessionFenced when it is not open any more."""

    def end_session(self, session: str) -> None:
        """Give up: the session is fenced, its pins go, what it reserved is for gc. Ending twice is no error."""

    def pin(self, session: str, digests: Sequence[bytes]) -> dict[bytes, ChunkLocation]:
        """`locate`, and pin the packs found so that gc spares them while the session is open."""

    def reserve(self, session: str, packs: Sequence[str], document: str | None = None) -> None:
        """Record packs as pending, and the storage key of a document, before their first byte is written.

        What the session does not commit, or give to a tag, is for gc. Raises SessionFenced.
        """

    def commit(self, session: str, new: NewCommit) -> CommitRecord:
        """Make a commit exist, durably, and end the session.

        The recheck in the same transaction closes the race of dedup against gc: every used pack must be live and
        every own pack pending and ours.

        The same (run, step) with the same `content` is success again: the existing record comes back. Own packs that
        hold what commits have lost become live then; the others are for gc. Otherwise documents that a rebuild left
        out of the same step are for gc.

        Raises:
            SessionFenced: the session is not open any more, or a used pack is gone.
            StepExists: the step holds other content.
        """

    def again(self, session: str, new: NewCommit) -> CommitRecord | None:
        """What `commit` does when the (run, step) has the same `content`; None, and nothing changed, when it is free.

        Raises SessionFenced when packs that heal are not the session's, StepExists when the step holds other content.
        """

    def enter(self, new: NewCommit) -> None:
        """Make a commit exist whose packs and document are in storage already, all at once: for a rebuild, which can
        be killed at any time and done again. What `leave_out` recorded stays.

        Raises SessionFenced when a used pack is not live, StepExists when the step holds other content.
        """

    def leave_out(self, found: Sequence[LeftOutDocument]) -> None:
        """These, and no others, are what a rebuild left out, since chunks were missing. The catalog does not count them
        as known: when one is whole again it had better be entered.
        """

    def rewrite(self, session: str, new: Rewrite) -> None:
        """Let commits need other packs, durably, and end the session. Left out are commits that were purged meanwhile,
        and, unless the packs are `damaged`, those that need none of them any more, since another gc was faster.

        Raises:
            SessionFenced: the session is not open any more, a pack that is needed is gone, or, with `damaged`, another
                commit needs one of those packs.
        """

    # names and deletion

    def tag(
        self, session: str, name: str, commit: CommitRecord, document: str, instead_of: str | None = None
    ) -> str | None:
        """Point a tag of the commit's run at it, moving it if it exists, and end the session, which has reserved the
        document that says so in storage. The document of where it pointed before comes back, and is for gc.

        Raises:
            StepNotFound: the commit is not live.
            SessionFenced: the session is not open any more, or `instead_of` is given and is not the tag's document.
        """

    def untag(self, run: str, name: str) -> str:
        """Remove a tag of a run; its document, which is for gc. Raises RunNotFound, TagNotFound."""

    def enter_tags(self, records: Sequence[TagRecord]) -> None:
        """Point tags at live commits, all at once, whose documents are in storage already: for a rebuild."""

    def tags(self, run: str | None = None) -> list[TagRecord]:
        """Every tag, or those of one run, by run and name; empty for a run that does not exist."""

    def delete(self, gone: Sequence[CommitRecord]) -> None:
        """Mark live commits deleted, all or none: these very ones, not others that were made at their steps since.

        Raises StepNotFound when one is not live any more, StepProtected when one is tagged.
        """

    def restore(self, run: str, step: int) -> CommitRecord:
        """Take back the last deletion of a step. Raises StepExists when the step was made anew, RunNotFound, and
        StepNotFound when no deleted commit is left there.
        """

    # upkeep

    def mark_verified(self, packs: Sequence[str]) -> None:
        """Record that the bytes of these packs were found to be as they were written."""

    def replace_manifest(self, commit: str, data: bytes) -> None:
        """Give a commit its manifest document back. Raises StepNotFound when it was purged."""

    # gc

    def fence_expired(self) -> int:
        """Fence the sessions whose lease ran out; how many there were."""

    def garbage(self, grace: float) -> Objects:
        """What `condemn` would condemn now, without changing anything; `documents` are of commits to be purged."""

    def condemn(self, grace: float) -> Objects:
        """Purge commits deleted more than `grace` seconds ago; condemn live packs that no commit, live or deleted,
        needs and no open session pins, what fenced and ended sessions reserved without committing it, and damaged packs
        once nothing is lost. Locations of condemned packs and manifests of purged commits go in the same transaction.
        It does as much as other writers can wait for: call it again, after `settle`, until nothing comes.

        Returns everything that is condemned or purged and not yet settled, from earlier, interrupted rounds too.
        """

    def settle(self, done: Objects) -> None:
        """Record that these objects are gone from storage."""
