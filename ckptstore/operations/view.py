"""A manifest as users see it: a read-only mapping from logical path to entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckptstore.catalog.base import CommitRecord
from ckptstore.errors import PathNotFound, nearest
from ckptstore.format.manifest import Entry, Manifest


class ManifestView(Mapping[str, Entry]):
    """The leaves of one commit. `commit` is its record; `manifest` also has the containers and what is tied."""

    def __init__(self, commit: CommitRecord, manifest: Manifest) -> None:
        self.commit, self.manifest = commit, manifest

    @property
    def name(self) -> str:
        """How messages name the commit."""
        return f"{self.commit.run}@{self.commit.step}"

    def __getitem__(self, path: str) -> Entry:
        try:
            return self.manifest.entries[path]
        except KeyError:
            raise self.unknown(path) from None

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
        return PathNotFound(f"{self.name} has no path {path!r}; {nearest(path, known)}")
