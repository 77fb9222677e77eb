"""The coordinator of a commit that several ranks make: the only one who talks to the catalog."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from itertools import islice
from types import TracebackType
from typing import Any, Self

from ckptstore.batching import batched
from ckptstore.catalog.records import ChunkLocation, CommitRecord, NewCommit
from ckptstore.chunkstore import ChunkStore, ChunkWriter
from ckptstore.chunkstore.claims import SessionClaims
from ckptstore.errors import InvalidArgument, SessionFenced
from ckptstore.format import version
from ckptstore.format.grid import Division
from ckptstore.format.manifest import Manifest, split_digests
from ckptstore.format.packs import TARGET_BYTES, pack_key
from ckptstore.operations.committing.lineage import Lineage
from ckptstore.operations.committing.publish import discard, new_commit, publish, taken_step
from ckptstore.operations.history import Draft, placed
from ckptstore.operations.ranks.dealing import deal
from ckptstore.operations.ranks.reports import Ask, Dealt, Grant, Opening, Report, merged
from ckptstore.operations.session import kept_alive, writing_session

_MOST_ASKED = 1 << 14
_FRAMING = 256


class Gathering:
    """One commit on its way: opened by `deal`, given up when its context is left with an error, ended by `publish`.

    Between the two its session has a lease, but nobody who extends it.
    """

    def __init__(self, chunks: ChunkStore, draft: Callable[[], Draft]) -> None:
        self._chunks, self._make_draft = chunks, draft
        self._stack = ExitStack()
        self._known: set[bytes] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def deal(self, openings: Sequence[Opening]) -> list[Dealt]:
        """Open the session, and give every rank its share of the work.

        Raises:
            InvalidArgument: ranks disagree on store, run or step.
            StateError: their shards do not make whole tensors.
        """
        check_same(openings)
        version.check_features(self._chunks.config.requires_write, "write to", self._chunks.storage.url)
        deals = deal([opening.shards for opening in openings], self._chunks.config.division)
        self._draft = placed(self._chunks.catalog, self._make_draft())
        self._taken = taken_step(self._chunks, self._draft)
        self._session = self._stack.enter_context(writing_session(self._chunks.catalog))
        self._claims = SessionClaims(self._chunks.catalog, self._session)
        self.writer: ChunkWriter = self._chunks.claiming_writer(self._claims)
        self.lineage = Lineage(self._chunks, self._draft.parent)
        windows = max(opening.windows for opening in openings)
        above = None if self._draft.parent is None else self._chunks.catalog.by_id(self._draft.parent)
        return [Dealt(each, windows, None if above is None else above.document) for each in deals]

    def grant(self, asks: Sequence[Ask]) -> list[Grant]:
        """Every chunk that nobody holds yet to the first rank that has it. Raises StepExists when there is one
        that no commit has lost, and the step is taken.
        """
        digests = [split_digests(ask.digests, self._chunks.digest.size) for ask in asks]
        fresh = list(dict.fromkeys(one for each in digests for one in each if one not in self._known))
        self._known.update(fresh)
        held = {one for some in batched(fresh, _MOST_ASKED) for one in self.writer.rely_on(some)}
        missing = set(fresh) - held
        if self._taken is not None and missing - self._chunks.catalog.lost().keys():
            raise self._taken
        grants = self._grants(asks, [_taken(each, missing) for each in digests])
        places = self._places(asks, digests, grants)
        return [
            grant._replace(places=_reached(places, [ask.bases[place] for place in grant.wanted if place in ask.bases]))
            for ask, grant in zip(asks, grants, strict=True)
        ]

    def settle(self, messages: Sequence[Any]) -> list[None]:
        """All ranks have written what they were granted."""
        self.writer.finish()
        return [None] * len(messages)

    def publish(self, reports: Sequence[Report], make: Callable[[Report, Division], Manifest]) -> CommitRecord:
        """Make the commit exist, of the reports of all ranks; `make` gives its manifest.

        Raises StateError, and see `publish.publish`.
        """
        with kept_alive(self._chunks.catalog, self._session) as session:
            written = merged(reports)
            self.writer.rely_on(split_digests(written.bases, self._chunks.digest.size))
            new = self._new_commit(make(written, self._chunks.config.division), written)
            try:
                return publish(self._chunks, session, new)
            except SessionFenced:
                discard(self._chunks.storage, [pack_key(pack.name) for pack in written.packs])
                raise

    def _grants(self, asks: Sequence[Ask], wanted: Sequence[Sequence[int]]) -> list[Grant]:
        """With names for as many packs as the ranks may need; the first one's writer reserves its own."""
        lacking = [0, *map(_lacking_names, asks[1:], wanted[1:])]
        names = iter(self._claims.reserve(sum(lacking)) if any(lacking) else ())
        return [Grant(places, list(islice(names, count))) for places, count in zip(wanted, lacking, strict=True)]

    def _places(
        self, asks: Sequence[Ask], digests: Sequence[Sequence[bytes]], grants: Sequence[Grant]
    ) -> Mapping[bytes, ChunkLocation]:
        """Where what granted chunks may rest on lies, pinned. What commits have lost is stored whole: that heals."""
        asked = [
            (digests[rank][place], ask.bases[place])
            for rank, (ask, grant) in enumerate(zip(asks, grants, strict=True))
            for place in grant.wanted
            if place in ask.bases
        ]
        if not asked:
            return {}
        lost = self._chunks.catalog.lost()
        return self._claims.pin(list({base for digest, base in asked if digest not in lost}))

    def _new_commit(self, manifest: Manifest, written: Report) -> NewCommit:
        needs = Counter(self.writer.finish()[1])
        for pack in written.packs:
            needs[pack.name] = sum(chunk.length for chunk in pack.chunks)
        bases = b"".join(sorted({*split_digests(self.writer.bases + written.bases, self._chunks.digest.size)}))
        return new_commit(self._chunks, manifest, self._draft, written.packs, needs, bases)


def _taken(digests: Sequence[bytes], missing: set[bytes]) -> list[int]:
    """Places of the chunks that were missing, and now are not any more."""
    places = []
    for place, digest in enumerate(digests):
        if digest in missing:
            missing.discard(digest)
            places.append(place)
    return places


def _lacking_names(ask: Ask, wanted: Sequence[int]) -> int:
    if not wanted:
        return 0
    most = 1 + 2 * sum(ask.sizes[place] + _FRAMING for place in wanted) // TARGET_BYTES
    return max(0, most - ask.names)


def _reached(places: Mapping[bytes, ChunkLocation], bases: Iterable[bytes]) -> list[ChunkLocation]:
    """The places of these, and of the one chunk below each."""
    found = {base: places[base] for base in bases if base in places}
    below = {base: places[base] for place in found.values() for base in place.bases}
    return list((below | found).values())


def check_same(openings: Sequence[Opening]) -> None:
    """Raises InvalidArgument when ranks are not about to save to one place."""
    first = openings[0]
    for rank, opening in enumerate(openings):
        for what in ("store", "run", "step"):
            mine, theirs = getattr(first, what), getattr(opening, what)
            if mine != theirs:
                raise InvalidArgument(f"rank 0 saves to {what} {mine!r}, rank {rank} to {theirs!r}: give all the same")
