"""Names: what a step, a run, a tag and metadata may be, and how a reference to a commit is written."""

from __future__ import annotations

import json
import operator
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

import msgspec

from ckptstore.catalog.base import Catalog
from ckptstore.catalog.records import LATEST, CommitRecord
from ckptstore.errors import InvalidArgument, StepNotFound

Ref = int | str | CommitRecord
"""A commit: its step, a tag, "latest", any of these behind `run@`, or the commit itself."""

MOST_STEP = (1 << 63) - 1
_BOOLS = {"bool", "torch.bool"}
_MOST_NAME = 200
_MOST_DEEP = 100
"""So far may metadata be nested: JSON of more is not read on every stack."""


def resolve(catalog: Catalog, run: str, ref: Ref) -> CommitRecord:
    """The live commit that a reference names. Raises InvalidArgument, RunNotFound, StepNotFound, TagNotFound."""
    if isinstance(ref, CommitRecord):
        return _still_live(catalog, ref)
    if not isinstance(ref, str):
        return catalog.find(run, check_step(_single(ref)))
    if "\0" in ref:
        raise InvalidArgument(f"step {ref!r} has a NUL character in it: give a number, a tag or a commit")
    other, at, name = ref.rpartition("@")
    return catalog.find(other if at else run, _step_of(name) if name.isdecimal() else name)


def _single(ref: object) -> object:
    if isinstance(ref, Iterable) and getattr(ref, "shape", None) != ():
        raise InvalidArgument(f"step {ref!r} is a {type(ref).__name__}: give one, a number, a tag or a commit")
    return ref


def _still_live(catalog: Catalog, commit: CommitRecord) -> CommitRecord:
    found = catalog.by_id(commit.id)
    if found is None or found.deleted is not None:
        problem = f"the commit {commit.id} of step {commit.step} of run {commit.run!r} was deleted"
        raise StepNotFound(f"{problem}: name another, or take it back with restore while gc's grace lasts")
    return found


def _step_of(digits: str) -> int:
    """A step given in digits, of which Python converts only so many."""
    return check_step(int(digits) if len(digits) <= _MOST_NAME else MOST_STEP + 1)


def check_step(step: object) -> int:
    """`step` as an int, when it is one from 0 to 2**63 - 1 (numpy's and torch's count, bool does not)."""
    of_array = str(getattr(step, "dtype", "")) in _BOOLS or getattr(step, "shape", ()) != ()
    if isinstance(step, bool) or of_array or not isinstance(step, SupportsIndex):
        raise InvalidArgument(f"step {step!r} is a {type(step).__name__}: give an int")
    try:
        number = operator.index(step)
    except (TypeError, RuntimeError) as error:
        raise InvalidArgument(f"step {step!r}: give an int: {error}") from None
    if not 0 <= number <= MOST_STEP:
        raise InvalidArgument(f"step {number}: give one from 0 to 2**63 - 1")
    return number


def check_name(kind: str, name: object) -> str:
    """`name` when it can name a run or a tag: some printable characters, without "@", not a number or "latest"."""
    if not isinstance(name, str) or not 0 < len(name) <= _MOST_NAME or not name.isprintable() or name != name.strip():
        raise InvalidArgument(f"{kind} {name!r}: give a name of 1 to {_MOST_NAME} printable characters")
    if "@" in name or name == LATEST or name.isdecimal():
        raise InvalidArgument(f'{kind} {name!r}: a name has no "@", is no number and not "{LATEST}"')
    return name


def check_metadata(metadata: Mapping[str, Any] | None) -> dict[str, Any]:
    """Metadata as plain JSON; 0-d arrays and tensors become numbers. Raises InvalidArgument naming the key."""
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidArgument(f"metadata is a {type(metadata).__name__}: give a dict")
    plain: dict[str, Any] = {}
    for key, value in (metadata or {}).items():
        if not isinstance(key, str):
            raise InvalidArgument(f"metadata key {key!r}: give a str")
        try:
            number = value.item() if getattr(value, "shape", None) == () else value
            plain[key] = json.loads(json.dumps(number), object_pairs_hook=_distinct)
            msgspec.msgpack.encode({key: plain[key]})
        except (TypeError, ValueError, OverflowError, RuntimeError, AttributeError) as error:
            raise InvalidArgument(f"metadata {key!r} is not JSON: {error}") from None
        if _is_deeper(plain[key], _MOST_DEEP):
            raise InvalidArgument(f"metadata {key!r} is nested more than {_MOST_DEEP} deep: keep it flatter")
    return plain


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON, in which every key is text. Raises ValueError where that makes two keys one."""
    found = dict(pairs)
    if len(found) < len(pairs):
        key, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise ValueError(f"two keys of a dict are {key!r} in JSON: name one otherwise")
    return found


def _is_deeper(value: object, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth < 0 or any(_is_deeper(one, depth - 1) for one in inner)
