"""fsspec's clients, set up as the protocol needs them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any

import fsspec
from fsspec.dircache import DirCache

from ckptstore.errors import InvalidArgument, StorageError, StorageUnavailable
from ckptstore.locks import Lock
from ckptstore.storage.failures import is_gone_upload, reason, secrets_of, transient, without_password

_EXTRAS = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gcs",
    "gcs": "gcs",
    "http": "http",
    "https": "http",
    "sftp": "sftp",
    "ssh": "sftp",
}
_S3 = ("s3://", "s3a://")
_GCS = ("gs://", "gcs://")
_PART = 16 << 20
_LONGEST_ANSWER, _SLOWEST = 60.0, 128 << 10
"""Seconds, and bytes a second, that storing an object may take."""
_BOTO = {
    # Some servers send the whole object's checksum with a range of it, and boto would refuse that range.
    "response_checksum_validation": "when_required",
    "retries": {"mode": "standard", "total_max_attempts": 2},
}


def connect(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """A file system of our own, that remembers no listing, and the path of `url` in it.

    Raises InvalidArgument for what cannot be opened, and StorageError for what is out of reach.
    """
    shown, secrets = without_password(url), secrets_of(url, options)
    try:
        fs, root = _open(url, _defaults(url, options))
    except ImportError as error:
        extra = _EXTRAS.get(url.partition("://")[0])
        advice = f'run: pip install "ckptstore[{extra}]"' if extra else str(error)
        raise InvalidArgument(f"{shown}: a package for this scheme is missing; {advice}") from error
    except OSError as error:
        kind = StorageUnavailable if transient(error) else StorageError
        raise kind(f"cannot reach {shown}: {reason(error, secrets)}") from error
    except Exception as error:
        raise InvalidArgument(f"{shown}: fsspec cannot open this: {reason(error, secrets)}") from error
    if isinstance(getattr(fs, "dircache", None), DirCache):
        fs.dircache.use_listings_cache = False
    if url.startswith(_S3):
        fs.retries = 1  # boto repeats requests and `Retrying` repeats operations; a third one would multiply the waits
    return fs, root


def turns(fs: Any) -> AbstractContextManager[Any]:
    """What each operation waits for: clients that are not asynchronous need not be safe for several threads."""
    return nullcontext() if getattr(fs, "async_impl", False) else Lock()


def is_web(url: str) -> bool:
    """Whether this is a web server's."""
    return url.startswith(("http://", "https://"))


def stores_whole(fs: Any) -> bool:
    """Whether an object appears there whole or not at all; fsspec's own way of writing may leave a part."""
    return getattr(fs.pipe_file, "__func__", None) is not fsspec.AbstractFileSystem.pipe_file


def every_file(fs: Any, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Path and info of every file in a folder, or an error; fsspec's own `find` may leave out what fails."""
    try:
        listed = fs.ls(folder, detail=True)
    except (FileNotFoundError, NotADirectoryError) as error:
        if transient(error):
            raise
        return
    for info in listed:
        path = info["name"].rstrip("/")
        if info["type"] == "directory":
            yield from every_file(fs, path)
        else:
            yield path, info if info.get("size") is not None else fs.info(path)


def how_to_put(fs: Any) -> dict[str, Any]:
    """Arguments with which `pipe_file` stores an object only where there is none, large ones in parts at once."""
    known = inspect.signature(fs.pipe_file).parameters
    create = {"mode": "create"} if "mode" in known else {}
    return {**create, "chunksize": _PART} if "max_concurrency" in known else create


def deadline(fs: Any, size: int) -> dict[str, float]:
    """The argument with which fsspec gives `pipe_file` up when so many bytes are not stored in time.

    Clients' own timeouts begin once all was sent: a server that takes nothing would be waited for without end.
    """
    given_up = inspect.iscoroutinefunction(inspect.unwrap(fs.pipe_file))
    return {"timeout": _LONGEST_ANSWER + size / _SLOWEST} if given_up else {}


def is_taken(fs: Any, path: str) -> bool:
    """Whether there is an object; s3fs' own `exists` lists a folder too where there is none."""
    if not hasattr(fs, "call_s3"):
        return bool(fs.exists(path))
    bucket, key, _ = fs.split_path(path)
    try:
        fs.call_s3("head_object", fs.kwargs, Bucket=bucket, Key=key, **fs.req_kw)
    except FileNotFoundError:
        return False
    return True


def abort_uploads(fs: Any, start: str, older_than_seconds: float) -> int:
    """Abort uploads in parts, begun so long ago, of paths that start so; how many there were. Only S3 shows them."""
    if not hasattr(fs, "list_multipart_uploads"):
        return 0
    bucket, prefix, _ = fs.split_path(start)
    now, aborted = datetime.now(UTC), 0
    for upload in _uploads(fs, bucket, prefix):
        if (now - upload["Initiated"]).total_seconds() >= older_than_seconds:
            with suppress(FileNotFoundError):  # another one was faster
                fs.abort_mpu(bucket, upload["Key"], upload["UploadId"])
                aborted += 1
    return aborted


def _uploads(fs: Any, bucket: str, prefix: str) -> list[dict[str, Any]]:
    """The first thousand; the next time there are others."""
    try:
        return list(fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix).get("Uploads", []))
    except OSError as error:
        if transient(error) and not is_gone_upload(error):
            raise
        return []  # not every server can list them, or does so for everyone; rclone has none before the first one


def _open(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    if is_web(url):
        from ckptstore.storage.web import WebFileSystem

        return WebFileSystem(**options, skip_instance_cache=True), url
    fs, root = fsspec.core.url_to_fs(url, **options, skip_instance_cache=True)
    return fs, root


def _defaults(url: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options that a user need not know of."""
    if url.startswith(_GCS):
        return {"consistency": "size", **options}  # gcsfs' small uploads may lose a carriage return at their end
    if url.startswith(_S3):
        return {**options, "config_kwargs": _BOTO | dict(options.get("config_kwargs") or {})}
    return options
