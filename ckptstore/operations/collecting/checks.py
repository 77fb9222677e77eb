"""What gc makes sure of before anything goes: that the catalog is sound, and the storage its own."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from ckptstore.catalog.base import Catalog
from ckptstore.errors import GcRefused
from ckptstore.format.packs import PREFIX as PACKS
from ckptstore.format.packs import pack_key
from ckptstore.storage.base import Storage

_SOUND: WeakKeyDictionary[Catalog, bool] = WeakKeyDictionary()
"""Catalogs that were looked at, and whether also where they record chunks."""


def check_undamaged(catalog: Catalog, *, rewriting: bool) -> None:
    """A log that was left beside a catalog from a copy is laid over it when that is opened, and SQLite does not notice.

    So an index may hold fewer commits than there are. Looked at once for each that is open.
    """
    known = _SOUND.get(catalog)
    if known or (known is not None and not rewriting):
        return
    for found in catalog.damage(chunks=rewriting):
        raise GcRefused(
            f"the catalog {catalog.url} is damaged ({found}): nothing was collected; move it away, with the "
            "-wal and -shm beside it, which are another one's if it was brought back from a copy, and bring the copy "
            "back again, or make it anew with ckptstore rebuild"
        )
    _SOUND[catalog] = rewriting


def check_needed_packs(storage: Storage, catalog: Catalog) -> None:
    needed = _needed_packs(catalog)
    missing = needed.keys() - {info.key for info in storage.list(PACKS)}
    if missing:
        missing &= _needed_packs(catalog).keys()  # another gc may have taken some while the storage was listed
    for key in sorted(missing):
        raise GcRefused(
            f"{key}, needed by {needed[key]} commits, is not in {storage.url}: nothing was collected; "
            "run verify, and make sure that catalog and storage belong together"
        )


def _needed_packs(catalog: Catalog) -> dict[str, int]:
    """Storage key → number of commits."""
    return {pack_key(pack.name): pack.needed_by for pack in catalog.packs() if pack.state == "live" and pack.needed_by}
