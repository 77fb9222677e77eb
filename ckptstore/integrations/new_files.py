"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckptstore.errors import Conflict
from ckptstore.storage.durable import publish, sync_folder


@contextmanager
def new_file(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """A path beside `path` to write to; what is there at the end gets the name `path`, durably.

    A file that is overwritten keeps its permissions, and a link to one stays. After an error nothing is left, and what
    was there is as it was. Raises Conflict when it exists, unless `overwrite`, and always for what is no regular file.
    """
    taken = Conflict(f"{path} exists already: choose another name, or overwrite it (overwrite=True, --force)")
    if os.path.lexists(path):
        if not overwrite:
            raise taken
        path = _replaceable(path)
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    _create(temporary, path)
    try:
        yield temporary
        _sync(temporary)
        if overwrite:
            if path.exists():
                shutil.copymode(path, temporary)
            os.replace(temporary, path)
            sync_folder(path.parent)
        else:
            publish(temporary, path)
    except FileExistsError:
        raise taken from None
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to write files to, which gets the name `path` at the end, durably.

    After an error nothing is left. Raises Conflict when `path` exists.
    """
    if os.path.lexists(path):
        raise Conflict(f"{path} exists already: choose another name")
    temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        os.mkdir(temporary)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    try:
        yield temporary
        for file in temporary.iterdir():
            _sync(file)
        _sync(temporary)
        os.rename(temporary, path)
        sync_folder(path.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _replaceable(path: Path) -> Path:
    """The file itself, where `path` is a link."""
    try:
        found = path.resolve()
    except RuntimeError:  # links in a circle, up to Python 3.12
        found = path
    if found.is_symlink() or (found.exists() and not found.is_file()):
        raise Conflict(f"{path} is no regular file: choose another name")
    return found


def _create(temporary: Path, path: Path) -> None:
    """Fails here, in the name of `path`, where the folder is missing or can not be written."""
    try:
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
