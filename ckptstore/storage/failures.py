"""What the errors of fsspec's many clients mean: what is worth another try, and what may be shown."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ckptstore.errors import (
    ObjectExists,
    ObjectNotFound,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
)

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""Error numbers of writes for which there is no room: on the device, in a quota, or in a file."""
_STATUSES = {408, 425, 429, 500, 502, 503, 504}
_INSUFFICIENT = 507
_ERRNOS = {
    errno.EHOSTDOWN,
    errno.EHOSTUNREACH,
    errno.ENETDOWN,
    errno.ENETRESET,
    errno.ENETUNREACH,
    errno.ETIMEDOUT,
}
# By name, for none of the packages need be installed: those of botocore, aiohttp, requests and google-auth.
_LOST = {
    "ChunkedEncodingError",
    "ClientConnectionError",
    "ClientPayloadError",
    "ConnectionError",
    "HTTPClientError",
    "IncompleteReadError",
    "Timeout",
    "TransportError",
}
_GONE_UPLOAD = "NoSuchUpload"
"""One in parts that had ended when it was ended again, since the first reply was lost; or that an error ended."""
_NO_BUCKET = "NoSuchBucket"
_REFUSED = {"CertificateError", "ClientSSLError", "SSLError"}
_SECRETS = (
    *("secret", "password", "passphrase", "token", "credential", "authorization"),
    *("account_key", "private_key", "connection_string"),
)


def read_error(error: Exception) -> type[StorageError]:
    """The kind of error that a failed read is."""
    if transient(error):
        return StorageUnavailable
    missing = isinstance(error, FileNotFoundError) and not any(_code(cause) == _NO_BUCKET for cause in _causes(error))
    return ObjectNotFound if missing else StorageError


def write_error(error: Exception) -> type[StorageError]:
    """The kind of error that a failed write is."""
    if transient(error):
        return StorageUnavailable
    if isinstance(error, FileExistsError):
        return ObjectExists
    number = getattr(error, "errno", None)
    if isinstance(error, PermissionError) or number == errno.EROFS:
        return StorageReadOnly
    full = number in FULL or _INSUFFICIENT in map(_status, _causes(error))
    return StorageFull if full else StorageError


def transient(error: BaseException) -> bool:
    """Whether the same request may succeed later: nobody answered, or with a status that says so."""
    return any(map(_is_transient, _causes(error)))


def is_gone_upload(error: BaseException) -> bool:
    """Whether S3 says that there is no such upload in parts."""
    return any(_code(cause) == _GONE_UPLOAD for cause in _causes(error))


def without_password(url: str) -> str:
    """The URL as it may be shown."""
    return re.sub(r"(://[^:/@]*):[^/]*@", r"\1@", url)


def secrets_of(url: str, options: Mapping[str, Any]) -> set[str]:
    """What must not be shown, of a URL and of options at any depth."""
    found = set(re.findall(r"://[^:/@]*:([^/]*)@", url))
    for name, value in options.items():
        if isinstance(value, Mapping):
            found |= secrets_of("", value)
        elif isinstance(value, str):
            named = any(part in str(name).lower() for part in _SECRETS)
            found |= {value} if named else secrets_of(value, {})
    return found - {""}


def reason(error: Exception, secrets: Iterable[str]) -> str:
    """What an error says, without the secrets."""
    message = f"{type(error).__name__}: {error}"
    for secret in secrets:
        message = message.replace(secret, "***")
    return message


def _is_transient(error: BaseException) -> bool:
    names = {kind.__name__ for kind in type(error).__mro__}
    if isinstance(error, TimeoutError) or (names & _LOST and not names & _REFUSED):
        return True
    by_status = _code(error) == _GONE_UPLOAD or _status(error) in _STATUSES
    return by_status or getattr(error, "errno", None) in _ERRNOS


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _code(error: BaseException) -> str | None:
    """S3's name for an error of botocore."""
    response = getattr(error, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, Mapping) else None


def _status(error: BaseException) -> int | None:
    """The HTTP status in an error of botocore, requests, aiohttp or gcsfs, if it has one."""
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    places = ((response, "status_code"), (error, "status"), (error, "code"))
    status = next((getattr(at, name) for at, name in places if hasattr(at, name)), None)
    return int(str(status)) if str(status).isdigit() else None
