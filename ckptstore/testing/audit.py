"""Whether a store in a folder is whole: every step exact, nothing damaged, and no file that nobody needs."""

from __future__ import annotations

import os
import random
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from ckptstore.catalog.catalog import open_catalog, sqlite_url
from ckptstore.format.packs import pack_key
from ckptstore.format.version import KEY
from ckptstore.opening import CATALOG_FILE
from ckptstore.storage.keys import TEMPORARY
from ckptstore.store import Store, open_store
from ckptstore.testing.equality import assert_same

CHUNK_BYTES = 4096
"""The setting under which the tensors of `state_of` have several chunks."""


def state_of(run: str, step: int) -> dict[str, Any]:
    """A state of 36 KiB that its address determines: a part that never changes, one that does now and then, one that
    always does, a tie, and small leaves.
    """
    own = _noise(f"{run}@{step}", 8192)
    return {
        "model": {"frozen": _noise("frozen", 16384), "slow": _noise(f"slow {step // 4}", 8192), "own": own},
        "tied": own,
        "small": torch.tensor([float(step)]),
        "text": f"{run}@{step} " * 400,
        "step": step,
    }


def assert_exact(store: Store, run: str, step: int) -> None:
    """A step holds the `state_of` its address, to the last bit."""
    assert_same(store.checkout(f"{run}@{step}"), state_of(run, step))


def assert_whole(place: Path, needed: Iterable[tuple[str, int]] = ()) -> set[tuple[str, int]]:
    """Every live step is exact, the needed ones are among them, and `verify` finds nothing; the live (run, step)s."""
    with open_store(place) as store:
        live = {(run.name, step) for run in store.runs() for step in _steps(place, run.name)}
        lost = set(needed) - live
        assert not lost, f"lost: {sorted(lost)}"
        for run, step in live:
            assert_exact(store, run, step)
        report = store.verify()
    assert report.ok, report.problems
    return live


def assert_nothing_leaked(place: Path) -> None:
    """When leases have run out, a gc without grace leaves what commits need and nothing else.

    To be called when nobody writes: it lets the time of every session pass.
    """
    expire_sessions(place)
    age_temporary(place)
    with open_store(place) as store:
        store.gc(grace=0)
    stored, needed = files(place), needed_files(place)
    assert stored == needed, f"leaked: {sorted(stored - needed)}, missing: {sorted(needed - stored)}"


def files(place: Path) -> set[str]:
    """Every file of a store, unfinished ones too, except the database's own."""
    found = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith(CATALOG_FILE)}


def needed_files(place: Path) -> set[str]:
    """Every file that the catalog relies on."""
    catalog = open_catalog(sqlite_url(place / CATALOG_FILE), create=False)
    with closing(catalog):
        documents = {commit.document for commit in catalog.commits(deleted=True)}
        packs = {pack_key(pack.name) for pack in catalog.packs() if pack.state == "live" and pack.needed_by}
    return {KEY} | documents | packs


def expire_sessions(place: Path) -> None:
    """Let the lease of every session run out."""
    with closing(sqlite3.connect(place / CATALOG_FILE)) as database, database:
        database.execute("UPDATE sessions SET expires = 0")


def age_temporary(place: Path) -> None:
    """Let a long time pass since unfinished files were written."""
    for path in place.rglob(f"{TEMPORARY}*"):
        os.utime(path, (0, 0))


def _steps(place: Path, run: str) -> list[int]:
    with open_store(place, run=run) as store:
        return store.steps()


def _noise(seed: str, nbytes: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(random.Random(seed).randbytes(nbytes)), dtype=torch.float32)  # noqa: S311
