"""What a storage key may look like: a relative, `/`-separated path that means the same everywhere."""

from __future__ import annotations

import re
from functools import lru_cache

from ckptstore.errors import InvalidArgument

_NAME = re.compile(r"[A-Za-z0-9._%-]+")

TEMPORARY = ".writing-"
"""How the name of a file begins that is not an object yet."""


def check_key(key: str) -> None:
    """Refuse a key that could leave the root, or that some storage would read as another one."""
    reason = _objection(key)
    if reason:
        raise InvalidArgument(f"{key!r} is not a storage key: {reason}")


def check_prefix(prefix: str) -> str:
    """The folder that holds every key with this prefix, "" for the root; refuses what no key starts with."""
    folder = prefix.rpartition("/")[0]
    if folder or prefix.startswith("/"):
        check_key(folder)
    return folder


@lru_cache(1024)  # of many reads, few are of other packs
def _objection(key: str) -> str:
    names = key.split("/")
    if not all(names):
        return "it has an empty part"
    if not {".", ".."}.isdisjoint(names):
        return "'.' and '..' are not allowed"
    if any(name.startswith(TEMPORARY) for name in names):
        return f"names starting with {TEMPORARY!r} are unfinished writes"
    if not all(map(_NAME.fullmatch, names)):
        return "it holds more than ASCII letters, digits and . _ % -, which not every storage keeps as they are"
    return ""
