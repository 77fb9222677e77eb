"""A writer's lease in the catalog, kept alive while work goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial

from ckptstore.catalog.base import Catalog
from ckptstore.errands import uninterrupted
from ckptstore.errors import CatalogUnavailable, CkptStoreError, SessionFenced
from ckptstore.pools import start

LEASE_SECONDS = 60.0
"""How long a writer may be silent before gc may take it for dead."""


@contextmanager
def writing_session(catalog: Catalog, lease_seconds: float = LEASE_SECONDS) -> Iterator[str]:
    """A session's id, with a heartbeat at a third of the lease; on an error it ends, and gc finds its packs."""
    with kept_alive(catalog, catalog.open_session(lease_seconds), lease_seconds) as session:
        yield session


@contextmanager
def kept_alive(catalog: Catalog, session: str, lease_seconds: float = LEASE_SECONDS) -> Iterator[str]:
    """An open session, with a heartbeat; see `writing_session`. On leaving it without an error its lease runs on."""
    over = threading.Lock()
    over.acquire()
    beat = threading.Thread(target=_beat, args=(catalog, session, lease_seconds, over), daemon=True)
    try:
        uninterrupted(partial(start, beat))
        yield session
    except CatalogUnavailable:
        raise  # the lease runs out by itself
    except BaseException:
        with suppress(CkptStoreError):  # the first error is the one to raise
            catalog.end_session(session)
        raise
    finally:
        over.release()


def _beat(catalog: Catalog, session: str, lease_seconds: float, over: threading.Lock) -> None:
    while not over.acquire(timeout=lease_seconds / 3):
        try:
            catalog.extend_session(session, lease_seconds)
        except SessionFenced:
            return  # the commit's own check reports it
        except CkptStoreError:
            continue  # one missed beat is what the other two are for
