"""A manifest as users see it: a read-only mapping from logical path to entry."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TypeVar, overload

from ckptstore.catalog.records import CommitRecord
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import PathNotFound, nearest
from ckptstore.format.manifest import Entry, Manifest, check_consistent
from ckptstore.locks import Lock
from ckptstore.state.paths import selector

T = TypeVar("T")

_MOST_LEAVES = 1 << 16
"""Leaves in all manifests that `Views` keeps; some 50 MB."""


class ManifestView(Mapping[str, Entry]):
    """The leaves of one commit. `commit` is its record; `manifest` also has the containers and what is tied."""

    def __init__(self, commit: CommitRecord, manifest: Manifest) -> None:
        self.commit, self.manifest = commit, manifest

    @property
    def name(self) -> str:
        """How messages name the commit."""
        return self.commit.address

    def __getitem__(self, path: str) -> Entry:
        try:
            return self.manifest.entries[path]
        except KeyError:
            raise self.unknown(path) from None

    @overload
    def get(self, path: str, /) -> Entry | None: ...
    @overload
    def get(self, path: str, /, default: Entry | T) -> Entry | T: ...
    def get(self, path: str, /, default: T | None = None) -> Entry | T | None:
        """Without what `[]` takes its time for: to find out which paths are near one that is missing."""
        return self.manifest.entries.get(path, default)

    def __contains__(self, path: object) -> bool:
        return path in self.manifest.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.entries)

    def __len__(self) -> int:
        return len(self.manifest.entries)

    def __repr__(self) -> str:
        return f"<manifest of {self.name}: {len(self)} leaves>"

    def unknown(self, path: str) -> PathNotFound:
        """The error for a path that the commit does not have."""
        known = [*self.manifest.entries, *self.manifest.containers]
        if path not in self.manifest.containers and any(map(selector([path]), known)):
            return PathNotFound(f"{self.name} has no path {path!r}: it is a glob, which checkout(paths=…) takes")
        return PathNotFound(f"{self.name} has no path {path!r}; {nearest(path, known)}")


def view_of(chunks: ChunkStore, commit: CommitRecord) -> ManifestView:
    """The manifest of a commit, from the catalog. Raises StepNotFound when it was purged, CorruptData."""
    manifest = chunks.decode_document(chunks.catalog.manifest(commit.id), commit.document).manifest
    check_consistent(manifest, chunks.digest.size, f"the manifest of {commit.address}")
    return ManifestView(commit, manifest)


class Views:
    """Manifests that were read last: a commit's never changes. May be used from several threads, and by the handler of
    a signal in the midst of it.

    They are for reading alone: who could change one would change what is read later.
    """

    def __init__(self, chunks: ChunkStore) -> None:
        self._chunks = chunks
        self._kept: OrderedDict[str, Manifest] = OrderedDict()
        self._lock = Lock()

    def of(self, commit: CommitRecord) -> ManifestView:
        """See `view_of`."""
        with self._lock:
            kept = self._kept.pop(commit.id, None)
            if kept is not None:
                self._kept[commit.id] = kept
                return ManifestView(commit, kept)
        view = view_of(self._chunks, commit)
        with self._lock, suppress(KeyError):  # the last one is gone
            self._kept[commit.id] = view.manifest
            while sum(len(manifest.entries) for manifest in tuple(self._kept.values())) > _MOST_LEAVES:
                self._kept.popitem(last=False)
        return view
