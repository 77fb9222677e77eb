"""The parts of a store of which the n-th call fails, of its storage or its catalog, and what tells whether it did."""

from __future__ import annotations

from dataclasses import replace

from ckptstore.testing.catalog_faults import failing_catalog
from ckptstore.testing.faults import FailNth


def fail_storage(parts, n, after):
    storage = FailNth(parts.storage, n, after=after)
    return replace(parts, storage=storage), storage


def fail_catalog(parts, n, after):
    catalog, counter = failing_catalog(parts.catalog, n, after=after)
    return replace(parts, catalog=catalog), counter
