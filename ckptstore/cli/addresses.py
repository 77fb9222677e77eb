"""Commit ids as people write them."""

from __future__ import annotations

from dataclasses import replace

from ckptstore.cli.place import Place
from ckptstore.store import Store


class Addresses:
    """Looks up `run@step` of commit ids, first in the run of `store`; other runs are read only when they must be."""

    def __init__(self, place: Place, store: Store) -> None:
        self._place, self._store = place, store
        self._known = self._of_run(store)
        self._unread: list[str] | None = None

    def of(self, commit: str | None) -> str | None:
        """`run@step`; None for no commit, and for one that was purged."""
        if commit is None:
            return None
        while commit not in self._known and self._read_another():
            pass
        return self._known.get(commit)

    def _read_another(self) -> bool:
        if self._unread is None:
            self._unread = [run.name for run in self._store.runs() if run.name != self._store.run]
        if not self._unread:
            return False
        with replace(self._place, run=self._unread.pop()).open() as other:
            self._known |= self._of_run(other)
        return True

    @staticmethod
    def _of_run(store: Store) -> dict[str, str]:
        return {commit.id: f"{commit.run}@{commit.step}" for commit in store.log(deleted=True)}
