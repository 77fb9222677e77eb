"""A manifest as users see it: a read-only mapping from logical path to entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckptstore.catalog.base import CommitRecord
from ckptstore.errors import PathNotFound, nearest
from ckptstore.format.manifest import Entry, Manifest


class ManifestView(Mapping[str, Entry]):
    """The leaves of one commit. Also knows the containers and which paths are one tensor."""

    def __init__(self, commit: CommitRecord, manifest: Manifest) -> None:
        self.commit, self.manifest = commit, manifest

    def __getitem__(self, path: str) -> Entry:
        try:
            return self.manifest.entries[path]
        except KeyError:
            raise PathNotFound(unknown_path(self.commit, path, self.manifest)) from None

    def __contains__(self, path: object) -> bool:
        return path in self.manifest.entries

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.entries)

    def __len__(self) -> int:
        return len(self.manifest.entries)

    def __repr__(self) -> str:
        return f"<manifest of {self.commit.run}@{self.commit.step}: {len(self)} leaves>"


def unknown_path(commit: CommitRecord, path: str, manifest: Manifest) -> str:
    """The message for a path that a commit does not have."""
    return f"{commit.run}@{commit.step} has no path {path!r}; {nearest(path, manifest.entries)}"
