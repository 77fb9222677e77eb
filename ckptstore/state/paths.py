"""Logical paths: `model/layers.0.weight` is the address of one leaf.

A path is the segments of the keys on the way, joined by "/"; the root is "". The segment of a key is

- a str key itself, with its "%" and "/" percent-escaped, as is the first character of one that reads like an int;
- an int key or an index in plain decimal;
- `%(…)` with the encoded key as JSON for all others, as in `%({"tuple":[0,"a"]})`, `%(null)` or `%("")`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable
from functools import lru_cache

from ckptstore.errors import InvalidArgument
from ckptstore.format.manifest import Value

_SPECIAL = re.compile(r"[*?\[]")
_READS_LIKE_INT = re.compile(r"-?[0-9]+")
_ESCAPED = re.compile(r"%([0-9A-F]{2})")
_GLOB_TOKEN = re.compile(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", re.DOTALL)
_SET_PART = re.compile(r"(.)-(.)|(.)", re.DOTALL)


def join(*segments: str) -> str:
    """The path of encoded segments; empty ones, as the root is, vanish."""
    return "/".join(filter(None, segments))


def split(path: str) -> tuple[str, ...]:
    """The encoded segments of a path; none for the root."""
    return tuple(path.split("/")) if path else ()


def segment(key: Value) -> str:
    """The segment of an encoded key: another one for every key, see `parse`."""
    if type(key) is str and key:
        return _named(key)
    if type(key) is int:
        return str(key)
    text = json.dumps(key, default=_bytes_as_json, ensure_ascii=False, separators=(",", ":"))
    return f"%({_escape(text)})"


@lru_cache(4096)  # every commit of a model asks for the same ones
def _named(key: str) -> str:
    return f"%{ord(key[0]):02X}{key[1:]}" if _READS_LIKE_INT.fullmatch(key) else _escape(key)


def parse(segment: str) -> Value:
    """The encoded key of a segment; the inverse of `segment`. Raises InvalidArgument for what is no segment."""
    if not segment.startswith("%("):
        return int(segment) if _READS_LIKE_INT.fullmatch(segment) else _unescape(segment)
    try:
        return json.loads(_unescape(segment[2:-1]), object_hook=_bytes_from_json)
    except ValueError as error:
        raise InvalidArgument(f"{segment!r} is no segment of a logical path: {error}") from None


def matches(path: str, glob: str) -> bool:
    """Whether a glob selects a path.

    `*` and `?` stay within a segment, `**` crosses them, `[…]` and `[!…]` are sets of characters. What names a
    container, or is its path literally, selects everything beneath.
    """
    return selector([glob])(path)


def selector(globs: Iterable[str]) -> Callable[[str], bool]:
    """Whether any of the globs selects a path, for asking about many paths."""
    literal = set(globs)
    if not literal:
        return lambda _: False
    patterns = [_pattern(glob) for glob in literal if _SPECIAL.search(glob)]

    def selects(path: str) -> bool:
        ends = (place for place, character in enumerate(path) if character == "/")
        named = "" in literal or path in literal or any(path[:end] in literal for end in ends)
        return named or any(pattern.fullmatch(path) for pattern in patterns)

    return selects


@lru_cache(4096)
def _pattern(glob: str) -> re.Pattern[str]:
    body = glob.removesuffix("/**")
    return re.compile("".join(map(_token_pattern, _GLOB_TOKEN.findall(body))) + "(?:/.*)?", re.DOTALL)


def _token_pattern(token: str) -> str:
    if token.startswith("[") and token.endswith("]") and len(token) > 2:
        return _set_pattern(token[1:-1])
    return {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}.get(token) or re.escape(token)


def _set_pattern(inner: str) -> str:
    negated = inner.startswith("!") and len(inner) > 1
    body = "".join(_range_pattern(*found) for found in _SET_PART.findall(inner[negated:]))
    included = f"[{body}]" if body else "(?!)"
    return f"(?!{included})[^/]" if negated else f"(?!/){included}"


def _range_pattern(low: str, high: str, single: str) -> str:
    """A part of a set: one character, or a range, which is empty when it runs backwards."""
    if single:
        return re.escape(single)
    return f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""


def _escape(text: str) -> str:
    return text.replace("%", "%25").replace("/", "%2F")


def _unescape(text: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def _bytes_as_json(value: object) -> dict[str, str]:
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    raise TypeError(f"{type(value).__name__} is no encoded key")


def _bytes_from_json(found: dict[str, Value]) -> Value:
    return bytes.fromhex(found["bytes"]) if set(found) == {"bytes"} else found


def is_within(path: str, roots: Collection[str]) -> bool:
    """Whether it is one of these paths, or beneath one."""
    return bool(root_of(path, roots))


def root_of(path: str, roots: Collection[str]) -> str:
    """The one of these paths that it is, or is beneath; "" if there is none."""
    while path and path not in roots:
        path = path.rpartition("/")[0]
    return path
