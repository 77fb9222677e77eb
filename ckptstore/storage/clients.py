"""fsspec's clients, set up as the protocol needs them."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import fsspec
from fsspec.dircache import DirCache

from ckptstore.errors import InvalidArgument, StorageError
from ckptstore.storage.failures import reason, secrets_of, without_password

_EXTRAS = {"s3": "s3", "s3a": "s3", "gs": "gcs", "gcs": "gcs"}
_S3 = ("s3://", "s3a://")
_GCS = ("gs://", "gcs://")
_PART = 16 << 20


def connect(url: str, options: Mapping[str, Any]) -> tuple[Any, str]:
    """A file system of our own, that remembers no listing, and the path of `url` in it.

    Raises InvalidArgument for what cannot be opened, and StorageError for what is out of reach.
    """
    shown, secrets = without_password(url), secrets_of(url, options)
    try:
        fs, root = fsspec.core.url_to_fs(url, **_defaults(url, options), skip_instance_cache=True)
    except ImportError as error:
        extra = _EXTRAS.get(url.partition("://")[0])
        advice = f'run: pip install "ckptstore[{extra}]"' if extra else str(error)
        raise InvalidArgument(f"{shown}: a package for this scheme is missing; {advice}") from error
    except OSError as error:
        raise StorageError(f"cannot reach {shown}: {reason(error, secrets)}") from error
    except Exception as error:
        raise InvalidArgument(f"{shown}: fsspec cannot open this: {reason(error, secrets)}") from error
    if getattr(fs.pipe_file, "__func__", None) is fsspec.AbstractFileSystem.pipe_file:
        raise InvalidArgument(f"{shown}: fsspec may leave half an object there; use a folder or an object store")
    if isinstance(getattr(fs, "dircache", None), DirCache):
        fs.dircache.use_listings_cache = False
    if url.startswith(_S3):
        fs.retries = 1  # boto repeats requests and `Retrying` repeats operations; a third one would multiply the waits
    return fs, root


def how_to_put(fs: Any) -> dict[str, Any]:
    """Arguments with which `pipe_file` stores an object only where there is none, large ones in parts at once."""
    known = inspect.signature(fs.pipe_file).parameters
    create = {"mode": "create"} if "mode" in known else {}
    return {**create, "chunksize": _PART} if "max_concurrency" in known else create


def abort_uploads(fs: Any, root: str, older_than_seconds: float) -> int:
    """Abort the uploads in parts below `root` that were begun so long ago; how many there were. Only S3 shows them."""
    if not hasattr(fs, "list_multipart_uploads"):
        return 0
    bucket, folder, _ = fs.split_path(f"{root}/")
    found = fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=folder).get("Uploads", [])
    now = datetime.now(UTC)
    old = [upload for upload in found if (now - upload["Initiated"]).total_seconds() >= older_than_seconds]
    for upload in old:
        fs.abort_mpu(bucket, upload["Key"], upload["UploadId"])
    return len(old)


def _defaults(url: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Options that a user need not know of."""
    if url.startswith(_GCS):
        return {"consistency": "size", **options}  # gcsfs' small uploads may lose a carriage return at their end
    if url.startswith(_S3):
        return {**options, "config_kwargs": _BOTO | dict(options.get("config_kwargs") or {})}
    return options


_BOTO = {
    # Some servers send the whole object's checksum with a range of it, and boto would refuse that range.
    "response_checksum_validation": "when_required",
    "retries": {"mode": "standard", "total_max_attempts": 2},
}
