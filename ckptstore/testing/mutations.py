"""Hostile changes to what a store holds, steered by bytes, so that any fuzzer can drive them."""

from __future__ import annotations

import copy
import datetime as dt
import math
from collections.abc import Sequence
from typing import Any, TypeVar

from msgspec import msgpack

T = TypeVar("T")

_PICKLE = b"cos\nsystem\n(S'touch pwned'\ntR."
_NUMBERS = [0, 1, -1, 2, 64, 255, 1 << 20, 1 << 31, 1 << 33, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1, -(1 << 63)]
_OTHERS = [None, True, False, 0.5, math.nan, math.inf, msgpack.Ext(5, b"x"), dt.datetime(2026, 1, 1, tzinfo=dt.UTC)]
_TEXTS = ["", "a", "0", "..", "../x", "\0", "%", "%(", "é", "x" * 300, "torch", "float32", "quint8", "V2147483647", "O"]
_TEXTS += ["dict", "tuple", "deque", "defaultdict", "sparse_csr", "quantized_per_channel", "qint32", "int8", "(9,9)f4"]
_BYTES = [b"", b"\0", bytes(16), bytes(32), bytes(300)]
_EMPTY: list[Any] = [[], {}, [[]], [0] * 70, [1 << 20] * 3, [1 << 62, 4], ["a", "a"]]
_KINDS: list[Any] = [
    {"pickle": _PICKLE},
    {"bytearray": 1 << 40},
    {"int": "f" * 5000},
    {"numpy": ["V2147483647", b""]},
    {"numpy.dtype": "O"},
    {"zoneinfo": "America"},
    {"datetime": ["2026-01-01", 0, {"zoneinfo": "America"}]},
    {"enum": ["os:system", "x"]},
    {"range": [0, 1 << 62, 1]},
    {"torch.Generator": ["cpu", b"x" * 5056]},
    {"torch.Size": [1 << 62]},
    {"Decimal": "1e999999999"},
    {"Fraction": [1, 0]},
    {"tuple": {"set": [[]]}},
    {"torch.device": "cuda:99"},
    {"dict": [1]},
]
HOSTILE: list[Any] = [*_NUMBERS, *_OTHERS, *_TEXTS, *_BYTES, *_EMPTY, *_KINDS]
"""Values that stand where they are not expected."""


class Choices:
    """Decisions read from bytes: the same bytes, the same decisions. When they have run out, every one is 0."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return len(self._data) - self._at

    def below(self, count: int) -> int:
        """A number from 0 to `count` - 1."""
        return int.from_bytes(self.take(1 if count <= 256 else 3), "little") % count

    def one_of(self, options: Sequence[T]) -> T:
        """One of them."""
        return options[self.below(len(options))]

    def take(self, count: int) -> bytes:
        """The next bytes, fewer at the end."""
        self._at += count
        return self._data[self._at - count : self._at]

    def rest(self) -> bytes:
        """All that is left."""
        return self.take(max(self.left, 0))


def mutate_bytes(data: bytes, choices: Choices) -> bytes:
    """Other bytes: some flipped, cut, doubled, inserted or overwritten."""
    changed = bytearray(data)
    for _ in range(1 + choices.below(4)):
        at = choices.below(len(changed) + 1)
        how = choices.below(5)
        if how == 0 and at < len(changed):
            changed[at] ^= 1 << choices.below(8)
        elif how == 1:
            del changed[at : at + choices.below(64)]
        elif how == 2:
            changed[at:at] = changed[at : at + choices.below(64)]
        else:
            many = choices.take(choices.below(12))
            changed[at : at + len(many) * (how == 3)] = many
    return bytes(changed)


def mutate_tree(tree: bytes, choices: Choices) -> Any:
    """Another tree than that of some msgpack: nodes replaced, removed, doubled, moved, wrapped or altered."""
    changed = [msgpack.decode(tree)]
    for _ in range(1 + choices.below(3)):
        places = _places(changed)
        parent, key = places[choices.below(len(places))]
        _change(parent, key, places, choices)
        if not changed:
            break
    return changed[0] if changed else None


def _places(root: Any) -> list[tuple[Any, Any]]:
    """Every node, as the list or dict it is in and its place there."""
    found: list[tuple[Any, Any]] = []
    nodes = [root]
    while nodes:
        node = nodes.pop()
        for key, child in node.items() if isinstance(node, dict) else enumerate(node):
            found.append((node, key))
            if isinstance(child, dict | list):
                nodes.append(child)
    return found


def _change(parent: Any, key: Any, places: Sequence[tuple[Any, Any]], choices: Choices) -> None:
    how = choices.below(12)
    same = [value for value in HOSTILE if type(value) is type(parent[key])]
    if how == 0:
        del parent[key]
    elif how == 1:
        source, place = choices.one_of(places)
        parent[key] = copy.deepcopy(source[place])
    elif how == 2:
        _double(parent, key, choices)
    elif how == 3:
        parent[key] = _wrapped(parent[key], choices)
    elif how == 4:
        parent[key] = copy.deepcopy(choices.one_of(HOSTILE))
    elif how <= 8 and same:
        parent[key] = copy.deepcopy(choices.one_of(same))
    else:
        parent[key] = _nudged(parent[key], choices)


def _double(parent: Any, key: Any, choices: Choices) -> None:
    if isinstance(parent, dict):
        parent[choices.one_of([*_TEXTS, *map(str, parent)])] = copy.deepcopy(parent[key])
    else:
        parent[key:key] = [copy.deepcopy(parent[key])] * (1 + choices.below(4))


def _wrapped(value: Any, choices: Choices) -> Any:
    for _ in range(choices.one_of([1, 1, 2, 40, 600])):
        value = [value] if choices.below(8) else {choices.one_of(["tuple", "set", "dict", "a"]): value}
    return value


def _nudged(value: Any, choices: Choices) -> Any:
    """Nearly the same."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + choices.one_of([1, -1, 2, 64, -64, 4096, -value - 1])
    if isinstance(value, bytes):
        return mutate_bytes(value, choices)
    if isinstance(value, str):
        return mutate_bytes(value.encode(), choices).decode(errors="replace")
    return value[::-1] if isinstance(value, list) else value
