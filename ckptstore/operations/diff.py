"""What changed between two commits: leaves by chunk digests, without reading data, and what holds them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from ckptstore.catalog.records import CommitRecord
from ckptstore.format.manifest import (
    Entry,
    Manifest,
    TensorEntry,
    ValueEntry,
    chunk_digests,
    chunk_sizes,
    entry_bytes,
)
from ckptstore.operations.structure import Restructured, Retied, restructured, retied
from ckptstore.operations.view import ManifestView


@dataclass(frozen=True, slots=True)
class Numbers:
    """How a tensor's values changed, computed in float64 over all its elements.

    Attributes:
        max_abs, mean_abs: largest and mean absolute difference.
        relative_l2: L2 norm of the difference over that of the old values.
        cosine: cosine of the angle between old and new; 1 for equal, NaN when either is all zero.
    """

    max_abs: float
    mean_abs: float
    relative_l2: float
    cosine: float


@dataclass(frozen=True, slots=True)
class Change:
    """One leaf that is not the same in both commits.

    Attributes:
        path: its logical path; where it was, for a removed leaf.
        kind: added, removed, changed or moved.
        old, new: its entries; None when added or removed.
        changed_bytes: bytes of the chunks that differ; of the whole leaf when its form differs.
        repeated: whether it is tied to a leaf before it in the new state, or to one that did not change, so that its
            bytes count once.
        moved_from: the old path of a moved leaf.
        numbers: how values changed, when asked for and both are dense numbers of one shape.
    """

    path: str
    kind: str
    old: Entry | None
    new: Entry | None
    changed_bytes: int
    moved_from: str = ""
    numbers: Numbers | None = None
    repeated: bool = False


@dataclass(frozen=True, slots=True, repr=False)
class Diff:
    """The difference of two commits.

    Attributes:
        old, new: the commits.
        changes: the leaves that are not the same.
        unchanged: how many leaves of the new state are.
        old_bytes, new_bytes: logical bytes of the two states.
        restructured: the containers that are others, see `Restructured`.
        retied: the leaves that are tied otherwise, see `Retied`.
    """

    old: CommitRecord
    new: CommitRecord
    changes: tuple[Change, ...]
    unchanged: int
    old_bytes: int
    new_bytes: int
    restructured: tuple[Restructured, ...] = ()
    retied: tuple[Retied, ...] = ()

    def __repr__(self) -> str:
        counts = Counter(change.kind for change in self.changes)
        summary = ", ".join(f"{counts[kind]} {kind}" for kind in ("added", "removed", "changed", "moved"))
        summary += f", {len(self.restructured)} restructured" * bool(self.restructured)
        summary += f", {len(self.retied)} retied" * bool(self.retied)
        names = f"{self.old.address} to {self.new.address}"
        return f"<diff of {names}: {summary}, {self.unchanged} unchanged, {self.changed_bytes} bytes>"

    def of(self, kind: str) -> tuple[Change, ...]:
        """The changes of one kind: added, removed, changed or moved."""
        return tuple(change for change in self.changes if change.kind == kind)

    @property
    def changed_bytes(self) -> int:
        """Bytes of the new state that the old one does not have at the same place; what is tied counts once."""
        counted = (change for change in self.changes if change.kind in ("added", "changed") and not change.repeated)
        return sum(change.changed_bytes for change in counted)


def compare_commits(old: ManifestView, new: ManifestView, digest_size: int) -> Diff:
    """The difference of two commits, from their manifests alone."""
    changes = tuple(compare(old.manifest, new.manifest, digest_size))
    touched = sum(change.kind != "removed" for change in changes)
    return Diff(
        old=old.commit,
        new=new.commit,
        changes=changes,
        unchanged=len(new) - touched,
        old_bytes=old.commit.logical_bytes,
        new_bytes=new.commit.logical_bytes,
        restructured=tuple(restructured(old.manifest, new.manifest)),
        retied=tuple(retied(old.manifest, new.manifest)),
    )


def compare(old: Manifest, new: Manifest, digest_size: int) -> list[Change]:
    """Every leaf that differs, in the order of the new manifest, removed ones last."""
    both = [(path, entry) for path, entry in new.entries.items() if path in old.entries]
    same = {path for path, entry in both if _content(old.entries[path]) == _content(entry)}
    changes = [
        Change(path, "changed", old.entries[path], entry, changed_bytes(old.entries[path], entry, digest_size))
        for path, entry in both
        if path not in same
    ]
    added = {path: entry for path, entry in new.entries.items() if path not in old.entries}
    removed = {path: entry for path, entry in old.entries.items() if path not in new.entries}
    moved = dict(_moves(removed, added))
    for path, entry in added.items():
        if path in moved:
            changes.append(Change(path, "moved", entry, entry, 0, moved_from=moved[path]))
        else:
            changes.append(Change(path, "added", None, entry, entry_bytes(entry)))
    gone = removed.keys() - set(moved.values())
    changes += [
        Change(path, "removed", removed[path], None, entry_bytes(removed[path])) for path in removed if path in gone
    ]
    order = {path: place for place, path in enumerate(new.entries)}
    repeated = new.tied.keys() | {path for group in new.aliases if not same.isdisjoint(group) for path in group}
    changes.sort(key=lambda change: order.get(change.path, len(order)))
    return [replace(change, repeated=True) if change.path in repeated else change for change in changes]


def changed_bytes(old: Entry, new: Entry, digest_size: int) -> int:
    """Bytes of the chunks of `new` that are not those of `old`; all of it when the grid differs."""
    if not _same_grid(old, new):
        return 0 if _same_inline(old, new) else entry_bytes(new)
    pairs = zip(chunk_digests(old, digest_size), chunk_digests(new, digest_size), chunk_sizes(new), strict=True)
    return sum(size for before, after, size in pairs if before != after)


def _same_grid(old: Entry, new: Entry) -> bool:
    if isinstance(old, TensorEntry) and isinstance(new, TensorEntry):
        form = (old.dtype, old.shape, old.chunk_shape, bool(old.chunks))
        return form == (new.dtype, new.shape, new.chunk_shape, bool(new.chunks)) and bool(old.chunks)
    if isinstance(old, ValueEntry) and isinstance(new, ValueEntry):
        return bool(old.chunks) and (old.size, old.chunk_size) == (new.size, new.chunk_size) and bool(new.chunks)
    return False


def _same_inline(old: Entry, new: Entry) -> bool:
    """Whether they are arrays of the same bytes, which the manifest itself holds."""
    if not isinstance(old, TensorEntry) or not isinstance(new, TensorEntry) or old.chunks or new.chunks:
        return False
    return (old.library, old.dtype, old.shape, old.inline) == (new.library, new.dtype, new.shape, new.inline)


def _moves(removed: Mapping[str, Entry], added: Mapping[str, Entry]) -> Iterator[tuple[str, str]]:
    """Pairs of new and old path with the same content; a content that several old paths had goes in order."""
    waiting: dict[bytes, list[str]] = defaultdict(list)
    for path, entry in removed.items():
        if isinstance(entry, TensorEntry) and entry_bytes(entry):
            waiting[_content(entry)].append(path)
    for path, entry in added.items():
        if waiting.get(_content(entry)):
            yield path, waiting[_content(entry)].pop(0)


def _content(entry: Entry) -> bytes:
    """Equal for equal entries; unlike `==` it distinguishes 1 from True and 0.0 from -0.0."""
    return msgspec.msgpack.encode(entry)
