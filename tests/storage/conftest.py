from __future__ import annotations

import errno
import os

import pytest


@pytest.fixture
def no_hard_links(monkeypatch):
    """A file system such as FAT, as far as this process can tell."""

    def link(*_):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", link)
