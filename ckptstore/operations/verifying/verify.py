"""Checking that what is stored is what was written, as deep as is wanted.

Levels, each of which does what the ones before it do: `catalog`, the database, its manifests, and that commits need the
packs of their chunks there; `sizes`, that every object is there and as long as it was, and the wrapped key of an
encrypted store whole; `footers`, what packs and manifest documents say of themselves; `data`, every byte of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Literal, get_args

from ckptstore.catalog.records import CommitRecord, PackRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance
from ckptstore.errors import (
    CatalogBusy,
    CatalogError,
    InvalidArgument,
    NotAStore,
    ObjectNotFound,
    StorageFull,
    StorageReadOnly,
)
from ckptstore.format import version
from ckptstore.format.document import PREFIX as MANIFESTS
from ckptstore.format.document import is_document_key
from ckptstore.format.packs import PREFIX as PACKS
from ckptstore.format.packs import pack_key
from ckptstore.operations.in_threads import mapped
from ckptstore.operations.manifests import users_of
from ckptstore.operations.orphans import unknown_commits
from ckptstore.operations.problem import Problem
from ckptstore.operations.seconds import are_seconds
from ckptstore.operations.verifying.documents import check_length, check_record, check_stored
from ckptstore.operations.verifying.needs import Needs
from ckptstore.operations.verifying.packs import Check, check_data, check_footer, check_missing, check_size
from ckptstore.operations.verifying.tags import check_missing_tags, check_tags, unknown_tags
from ckptstore.operations.wrapped_key import check_key
from ckptstore.pools import Pool
from ckptstore.progress import ProgressCallback, meter
from ckptstore.storage.base import ObjectInfo

Level = Literal["catalog", "sizes", "footers", "data"]

_LEVELS: tuple[str, ...] = get_args(Level)
_PACK_CHECKS: dict[str, Check] = {"sizes": check_size, "footers": check_footer, "data": check_data}
_WORKERS = 2
_MARKED_AT_ONCE = 16


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification looked at, and what it found.

    Attributes:
        commits: how many, live and deleted.
        packs: how many were checked, at the level that was asked for.
        bytes: their size.
        problems: what is wrong.
    """

    commits: int
    packs: int
    bytes: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was wrong."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Scope:
    """What to verify; see `Store.verify`. Raises InvalidArgument for what cannot be."""

    level: Level = "data"
    subset: tuple[int, int] | None = None
    older_than: float | None = None

    def __post_init__(self) -> None:
        if self.level not in _LEVELS:
            raise InvalidArgument(f"level={self.level!r}: choose one of {', '.join(_LEVELS)}")
        if self.subset is not None and not _is_share(self.subset):
            raise InvalidArgument(f"subset={self.subset!r}: give (k, n), for the k-th of n parts, as in (3, 20)")
        if self.older_than is not None and not are_seconds(self.older_than):
            raise InvalidArgument(f"older_than={self.older_than!r}: give seconds")

    def includes(self, level: Level) -> bool:
        """Whether that level is part of what was asked for."""
        return _LEVELS.index(self.level) >= _LEVELS.index(level)

    def chosen(self, packs: Sequence[PackRecord]) -> list[PackRecord]:
        """The live packs to look at, those first that were not verified for the longest time."""
        if self.level == "catalog":
            return []
        limit = float("inf") if self.older_than is None else time.time() - self.older_than
        found = [pack for pack in packs if pack.state == "live" and (pack.verified or 0) <= limit]
        if self.subset is not None:
            part, parts = self.subset
            found = [pack for pack in found if int(pack.name, 16) % parts == part - 1]
        return sorted(found, key=lambda pack: pack.verified or 0)


def verify(chunks: ChunkStore, scope: Scope, progress: ProgressCallback | None = None) -> VerifyReport:
    """Damage is reported, never raised; what gc takes meanwhile is no damage, and nor is what cannot be read now.

    Raises StorageError for that, NotAStore where the store does not lie any more, and CatalogError for a catalog that
    is damaged in a way that it cannot report.
    """
    found = list[Problem]()
    if scope.includes("sizes"):
        check_place(chunks)
        found += check_key(chunks)
    damage = [Problem("catalog", detail) for detail in chunks.catalog.check()]
    try:
        report = _verify(chunks, scope, progress, [*damage, *found])
    except CatalogError:
        if not damage:
            raise
        return VerifyReport(0, 0, 0, (*damage, *found))  # nothing else can be known
    if scope.includes("sizes") and not report.ok:
        check_place(chunks)
    return report


def check_place(chunks: ChunkStore) -> None:
    """Raises NotAStore where another store lies by now, or none: what that place lacks is not lost."""
    storage = chunks.storage
    with suppress(ObjectNotFound):
        if version.decode(storage.get(version.KEY), storage.url).id == chunks.config.id:
            return
    problem = f"{storage.url} does not hold the store any more that was opened, so that nothing was verified"
    raise NotAStore(f"{problem}: open it where it was moved to, or bring it back, {version.KEY} too")


def _verify(
    chunks: ChunkStore, scope: Scope, progress: ProgressCallback | None, found: Sequence[Problem]
) -> VerifyReport:
    commits = chunks.catalog.commits(deleted=True)
    chosen = scope.chosen(chunks.catalog.packs())
    total = sum(pack.size for pack in chosen)
    advance = meter(progress, "verify", total)
    wanted: set[bytes] = set()
    found = [*found, *_check_commits(chunks, commits, scope, wanted)]
    found += _check_tags(chunks, scope)
    found += _without_taken_packs(chunks, list(_check_packs(chunks, chosen, scope, advance)))
    missing = wanted - chunks.catalog.locate(list(wanted)).keys()
    damaged = missing | {problem.digest for problem in found if problem.digest}
    users = users_of(chunks, damaged, among={commit.id for commit in commits})  # a later one may have stored it anew
    found += [
        Problem("catalog", f"no live pack holds the chunk {digest.hex()}", digest) for digest in missing & users.keys()
    ]
    blamed = tuple(replace(problem, affected=users.get(problem.digest, problem.affected)) for problem in found)
    return VerifyReport(len(commits), len(chosen), total, blamed)


def _is_share(subset: object) -> bool:
    if not isinstance(subset, tuple) or len(subset) != 2 or not all(type(number) is int for number in subset):
        return False
    return bool(1 <= subset[0] <= subset[1])


def _check_commits(
    chunks: ChunkStore, commits: Sequence[CommitRecord], scope: Scope, wanted: set[bytes]
) -> Iterator[Problem]:
    there = {info.key: info.size for info in chunks.storage.list(MANIFESTS)} if scope.includes("sizes") else {}
    needs = Needs(chunks)
    for commit in commits:
        problems = list(check_record(chunks, commit, needs, wanted))
        if scope.includes("footers"):
            problems += check_stored(chunks, commit, wanted)
        elif scope.includes("sizes"):
            problems += check_length(chunks, commit, there.get(commit.document))
        if problems and chunks.catalog.by_id(commit.id) is not None:
            yield from problems
    for key, detail in unknown_commits(chunks, filter(is_document_key, there)):
        yield Problem(key, detail)


def _check_tags(chunks: ChunkStore, scope: Scope) -> Iterator[Problem]:
    if scope.includes("sizes"):
        yield from (check_tags if scope.includes("footers") else check_missing_tags)(chunks)
        for key, detail in unknown_tags(chunks):
            yield Problem(key, detail)


def _check_packs(chunks: ChunkStore, chosen: Sequence[PackRecord], scope: Scope, advance: Advance) -> Iterator[Problem]:
    """Checks in threads, and records in between which packs were found good."""
    listed = {info.key: info for info in chunks.storage.list(PACKS)} if chosen else {}

    def check(pack: PackRecord) -> list[Problem]:
        info = listed.get(pack_key(pack.name))
        found = list(_check_pack(chunks, pack, info, scope))
        advance(pack.size)
        return found

    good: list[str] = []
    with Pool(_WORKERS) as pool:
        try:
            for pack, problems in zip(chosen, mapped(pool, check, chosen), strict=True):
                yield from problems
                good += [] if problems or scope.level != "data" else [pack.name]
                if len(good) >= _MARKED_AT_ONCE:
                    _mark(chunks, good)
        finally:
            _mark(chunks, good)


def _check_pack(chunks: ChunkStore, pack: PackRecord, info: ObjectInfo | None, scope: Scope) -> Iterator[Problem]:
    return check_missing(chunks, pack) if info is None else _PACK_CHECKS[scope.level](chunks, pack, info)


def _mark(chunks: ChunkStore, good: list[str]) -> None:
    if good:
        with suppress(StorageReadOnly, StorageFull, CatalogBusy):  # then they are verified again sooner
            chunks.catalog.mark_verified(good)
        good.clear()


def _without_taken_packs(chunks: ChunkStore, found: list[Problem]) -> list[Problem]:
    if not found:
        return found
    known = {pack_key(pack.name) for pack in chunks.catalog.packs() if pack.state == "live"}
    return [problem for problem in found if not problem.object.startswith(PACKS) or problem.object in known]
