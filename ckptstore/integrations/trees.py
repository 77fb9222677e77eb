"""Nested dicts and lists of leaves that are known by the keys on the way to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ckptstore.errors import FormatError

KeyPath = tuple[str | int, ...]

_MOST_NESTED = 128
_MOST_ITEMS = 1 << 20


class _Node(dict[str | int, Any]):
    """An inner node on its way; a plain dict is a leaf."""


def tree(leaves: Iterable[tuple[KeyPath, Any]], source: str) -> dict[str, Any]:
    """The state of leaves: str are keys of dicts, ints are places in lists. An item that no leaf gives is None.

    Raises FormatError, naming the source, for keys that make no tree.
    """
    root = _Node()
    for keys, leaf in leaves:
        node = root
        where = f"{source}: {'.'.join(map(str, keys))!r}"
        if not 0 < len(keys) <= _MOST_NESTED or type(keys[0]) is not str:
            raise FormatError(f"{where} is at no place of a state of at most {_MOST_NESTED} levels")
        for key in keys[:-1]:
            node = node.setdefault(key, _Node())
            if type(node) is not _Node:
                raise FormatError(f"{where} is beneath another leaf")
        if keys[-1] in node:
            raise FormatError(f"{where} is a leaf, and has others beneath it")
        node[keys[-1]] = leaf
    return {str(key): _settled(value, source) for key, value in root.items()}


def _settled(node: Any, source: str) -> Any:
    if type(node) is not _Node:
        return node
    held = {key: _settled(value, source) for key, value in node.items()}
    places = [key for key in held if type(key) is int]
    if not places:
        return held
    if len(places) < len(held) or min(places) < 0 or max(places) >= _MOST_ITEMS:
        raise FormatError(f"{source}: a list has the items {', '.join(map(repr, list(held)[:9]))}")
    return [held.get(place) for place in range(max(places) + 1)]
