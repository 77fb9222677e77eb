"""From a path or a URL to the storage it names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ckptstore.errors import InvalidArgument
from ckptstore.storage.base import Storage
from ckptstore.storage.local import LocalStorage
from ckptstore.storage.wrappers import ReadOnly, Retrying

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.:_-]*://")
_FILE = "file://"
_NEARLY_URL = re.compile(r"(?:s3a?|gs|gcs|https?|sftp|ssh|file|memory|az|abfss?|adl|hdfs):(?!//)", re.IGNORECASE)


def open_storage(
    url: str | os.PathLike[str], *, storage_options: Mapping[str, Any] | None = None, create: bool = False
) -> Storage:
    """The storage at a place; for reading only where no object can be stored whole or not at all.

    Args:
        url: a path, a `file://` URL, or any URL that fsspec knows, such as `s3://bucket/folder` or `https://host/folder`.
            A path that begins with `~` is in the home folder.
        storage_options: what fsspec passes on to the file system of the URL, such as an endpoint; not for folders.
        create: make the folder if it is missing; object stores need no making.

    Raises:
        InvalidArgument: an empty or relative URL, one without its `//`, an unknown scheme, a path that cannot be, a
            package that is not installed, or options for a folder.
        StorageReadOnly, StorageError: the folder cannot be made.
    """
    if not isinstance(url, str | os.PathLike):
        raise InvalidArgument(f"the place of a store is {url!r}: give a path or a URL")
    if not isinstance(storage_options or {}, Mapping):
        raise InvalidArgument(f"storage_options={storage_options!r}: give a dict")
    folder = folder_of(url)
    if folder is None:
        from ckptstore.storage.remote import FsspecStorage

        reached = FsspecStorage(os.fspath(url), storage_options)
        return ReadOnly(Retrying(reached), reached.refusal) if reached.refusal else Retrying(reached)
    if storage_options:
        raise InvalidArgument(f"storage_options are for URLs such as s3://bucket, and {os.fspath(url)!r} is a folder")
    return LocalStorage(folder, create=create)


def folder_of(url: str | os.PathLike[str]) -> Path | None:
    """The folder that a place is; None for a URL of anything else. Raises InvalidArgument for what can be neither."""
    if isinstance(url, str) and _URL.match(url) and not url.startswith(_FILE):
        return None
    return _folder(os.fspath(url))


def _folder(text: str) -> Path:
    if not text.startswith(_FILE):
        if not text:
            raise InvalidArgument("the place of a store is empty: give a path or a URL")
        nearly = _NEARLY_URL.match(text)
        if nearly:
            meant = f"{nearly[0]}//{'/' if nearly[0] == 'file:' else ''}{text[nearly.end() :].lstrip('/')}"
            advice = f"write {meant!r}, or {_absolute(text)!r} if a folder is meant"
            raise InvalidArgument(f"{text!r} is nearly a URL: {advice}")
        return _possible(os.path.expanduser(text))
    path = unquote(text.removeprefix(_FILE))
    if not path.startswith("/"):
        raise InvalidArgument(f"{text!r} names no absolute path: write file:///path")
    return _possible(path)


def _possible(path: str) -> Path:
    if "\0" in path:
        raise InvalidArgument(f"the place of a store is {path!r}: no path holds a zero byte")
    return Path(_absolute(path))


def _absolute(path: str) -> str:
    try:
        return os.path.abspath(path)
    except FileNotFoundError as error:
        problem = f"{path!r} is relative, and the working directory was deleted"
        raise InvalidArgument(f"{problem}: give an absolute path, or change to a directory that is there") from error
