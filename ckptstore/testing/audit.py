"""Whether a store is whole: every step exact, nothing damaged, and no object that nobody needs."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ckptstore.cached import cached_property
from ckptstore.catalog.base import Catalog
from ckptstore.catalog.engine import Database
from ckptstore.catalog.opening import open_catalog, sqlite_url
from ckptstore.chunkstore import ChunkStore
from ckptstore.format.codecs import Level
from ckptstore.format.keys import PREFIX
from ckptstore.format.packs import pack_key
from ckptstore.format.version import KEY
from ckptstore.opening import CATALOG_FILE, open_parts
from ckptstore.operations.manifests import unheld_digests, users_of
from ckptstore.storage import open_storage
from ckptstore.storage.base import Storage
from ckptstore.storage.keys import TEMPORARY
from ckptstore.store import Store, open_store
from ckptstore.testing.equality import assert_same

CHUNK_BYTES = 16384
"""The setting under which some tensors of `state_of` have several chunks."""


@dataclass(frozen=True)
class Site:
    """Where a store is; `catalog` and `storage_options` as `open` takes them.

    It is opened with `compression="best"` unless told otherwise, so that chunks rest on others wherever they can.
    """

    url: str
    catalog: str | None = None
    storage_options: dict[str, Any] | None = None

    def open(self, run: str = "main", *, compression: Level = "best", **settings: Any) -> Store:
        """The store."""
        place = {"catalog": self.catalog, "storage_options": self.storage_options}
        return open_store(self.url, run=run, compression=compression, **(place | settings))

    def parts(self, *, create: bool = False) -> ChunkStore:
        """What the store is made of."""
        return open_parts(
            self.url,
            catalog=self.catalog,
            create=create,
            read_only=False,
            digest="xxh3_128",
            chunk_bytes=CHUNK_BYTES,
            compression="best",
            storage_options=self.storage_options,
        )

    @cached_property
    def storage(self) -> Storage:
        """What it is stored in; a client for a bucket takes longer to make than to ask."""
        return open_storage(self.url, storage_options=self.storage_options)

    @property
    def catalog_url(self) -> str:
        """Where its catalog is."""
        return self.catalog or sqlite_url(Path(self.url) / CATALOG_FILE)


Place = Site | Path | str
"""A site, or the folder of a store."""


def site_of(place: Place) -> Site:
    """The site of a folder."""
    return place if isinstance(place, Site) else Site(str(place))


def state_of(run: str, step: int) -> dict[str, Any]:
    """A state of 84 KiB that its address determines: a part that never changes, one that does now and then, one that
    always does, one that moves a little, a tie, and small leaves.
    """
    own = _noise(f"{run}@{step}", 8192)
    model = {"frozen": _noise("frozen", 32768), "slow": _noise(f"slow {step // 4}", 8192), "own": own}
    return {
        "model": model | {"drift": drifting(f"{run}@{step}")},
        "tied": own,
        "small": torch.tensor([float(step)]),
        "text": f"{run}@{step} " * 400,
        "step": step,
    }


def drifting(address: str) -> torch.Tensor:
    """Noise of 32 KiB that has little of its own, so that it rests on that of another address."""
    own = _noise(address, 8192).view(torch.uint8).int()
    return (_noise("drift", 32768).view(torch.int32) + own).view(torch.float32)


def assert_exact(store: Store, run: str, step: int) -> None:
    """A step holds the `state_of` its address, to the last bit."""
    assert_same(store.checkout(f"{run}@{step}"), state_of(run, step))


def assert_whole(
    place: Place, needed: Iterable[tuple[str, int]] = (), *, verified: bool = True
) -> set[tuple[str, int]]:
    """Every live step is exact, the needed ones are among them, and `verify` finds nothing; the live (run, step)s.

    Without `verified`, what is not read for that is not looked at either.
    """
    parts = site_of(place).parts(create=True)  # also what a full disk kept from being made
    with Store(parts, "main") as store:
        live = {(run.name, step) for run in store.runs() for step in parts.catalog.steps(run.name)}
        lost = set(needed) - live
        assert not lost, f"lost: {sorted(lost)}"
        for run, step in live:
            assert_exact(store, run, step)
        if verified:
            report = store.verify()
            assert report.ok, report.problems
            _assert_held(parts)
    return live


def assert_held(place: Place) -> None:
    """No commit lacks a chunk, but what it is known to have lost."""
    parts = site_of(place).parts()
    with closing(parts.catalog):
        _assert_held(parts)


def _assert_held(chunks: ChunkStore) -> None:
    lost = {(commit, digest) for digest, commits in chunks.catalog.lost().items() for commit in commits}
    missing = unheld(chunks)
    users = users_of(chunks, {digest for _, digest in missing})
    assert {(commit, digest) for commit, digest in missing if digest in users} <= lost <= missing


def unheld(chunks: ChunkStore) -> set[tuple[str, bytes]]:
    """Commit id and digest, of what a commit cannot decode from the packs it needs, resting on nothing but chunks that
    its document lists.
    """
    commits = chunks.catalog.commits(deleted=True)
    return {(commit.id, digest) for commit in commits for digest in unheld_digests(chunks, commit.id)}


def assert_nothing_leaked(place: Place) -> None:
    """When leases have run out, a gc without grace leaves what commits need and nothing else.

    To be called when nobody writes: it lets the time of every session pass.
    """
    expire_sessions(place)
    age_temporary(place)
    with site_of(place).open() as store:
        store.gc(grace=0)
    stored = files(place)
    with closing(open_catalog(site_of(place).catalog_url, create=False)) as catalog:
        needed = needed_of(stored, catalog)
    assert stored == needed, f"leaked: {sorted(stored - needed)}, missing: {sorted(needed - stored)}"


def files(place: Place) -> set[str]:
    """Every object of a store; in a folder also unfinished files, but not the database's own."""
    site = site_of(place)
    if "://" in site.url:
        return {info.key for info in site.storage.list("")}
    found = {path.relative_to(site.url).as_posix() for path in Path(site.url).rglob("*") if path.is_file()}
    return {name for name in found if not name.startswith(CATALOG_FILE)}


def needed_of(stored: set[str], catalog: Catalog) -> set[str]:
    """The objects that a store relies on; those that are stored show how it was made."""
    documents = {commit.document for commit in catalog.commits(deleted=True)}
    packs = {pack_key(pack.name) for pack in catalog.packs() if pack.state == "live" and pack.needed_by}
    tags = {tag.document for tag in catalog.tags()}
    return {KEY} | documents | packs | tags | {name for name in stored if name.startswith(PREFIX)}


def expire_sessions(place: Place) -> None:
    """Let the lease of every session run out."""
    with closing(Database(site_of(place).catalog_url)) as database, database.write() as connection:
        connection.exec_driver_sql("UPDATE sessions SET expires = 0")


def age_temporary(place: Place) -> None:
    """Let a long time pass since unfinished files were written; only folders have some."""
    for path in Path(site_of(place).url).rglob(f"{TEMPORARY}*"):
        os.utime(path, (0, 0))


def _noise(seed: str, nbytes: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(random.Random(seed).randbytes(nbytes)), dtype=torch.float32)  # noqa: S311
