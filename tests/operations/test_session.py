from __future__ import annotations

import threading

import pytest

from ckptstore.catalog.opening import open_catalog
from ckptstore.errors import StorageFull
from ckptstore.operations.session import writing_session

LEASE = 0.3


class Full:
    """A catalog whose disk is full the first time it is to record that a session lives, or that it ended."""

    def __init__(self, catalog):
        self._catalog, self.beats, self.alive = catalog, 0, threading.Event()

    def __getattr__(self, name):
        return getattr(self._catalog, name)

    def extend_session(self, session, seconds):
        self.beats += 1
        if self.beats == 1:
            raise StorageFull("catalog: database or disk is full")
        self._catalog.extend_session(session, seconds)
        self.alive.set()

    def end_session(self, session):
        raise StorageFull("catalog: database or disk is full")


@pytest.fixture
def full(tmp_path):
    catalog = open_catalog(f"sqlite:///{tmp_path}/catalog.sqlite", create=True)
    yield Full(catalog)
    catalog.close()


def test_a_disk_that_was_full_for_a_moment_is_asked_again(full):
    with writing_session(full, LEASE):
        assert full.alive.wait(20)


def test_the_first_error_is_reported(full):
    with pytest.raises(KeyError, match="the first"), writing_session(full):
        raise KeyError("the first")
