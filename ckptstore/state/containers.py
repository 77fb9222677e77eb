"""Inner nodes of a state: what they were, and how they are built again."""

from __future__ import annotations

import dataclasses
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from ckptstore.errors import StateError, UnknownType, UnsupportedLeaf
from ckptstore.format.manifest import Container, Value
from ckptstore.state.classes import (
    attributes_of,
    class_name,
    find_dataclass,
    find_namedtuple,
    is_namedtuple,
    with_attributes,
)
from ckptstore.state.values import decode, encode, is_plain, type_name

Opened = tuple[Container, Sequence[object]]

_FACTORIES: dict[str, type] = {
    cls.__name__: cls for cls in (bool, int, float, str, bytes, list, tuple, set, dict, OrderedDict, Counter, deque)
}
_SEQUENCES: dict[str, Callable[[Iterable[Any]], object]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
_MAPPINGS: dict[str, type[dict[Any, Any]]] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}


def open_container(value: Any, path: str) -> Opened | None:
    """A container and its children, or None when the value is none. Raises UnsupportedLeaf."""
    cls = type(value)
    if cls is dict:
        return Container("dict", _keys(value, path)), list(value.values())
    if cls is OrderedDict or cls is Counter:
        own = vars(value)
        attributes = {"vars": encode(own, path)} if own else {}
        return Container(cls.__name__, _keys(value, path), attributes=attributes), list(value.values())
    if cls is defaultdict:
        attributes = {"factory": _factory_name(value.default_factory, path)}
        return Container("defaultdict", _keys(value, path), attributes=attributes), list(value.values())
    if cls in _SEQUENCES.values():
        children = _in_order(value, path) if cls is set or cls is frozenset else list(value)
        return Container(cls.__name__, tuple(range(len(children)))), children
    if cls is deque:
        return Container("deque", tuple(range(len(value))), attributes={"maxlen": value.maxlen}), list(value)
    if is_namedtuple(cls) and not getattr(value, "__dict__", None):
        return Container("namedtuple", cls._fields, _type_of(value, path)), list(value)
    if dataclasses.is_dataclass(cls) and _is_pure(cls):
        held = attributes_of(value)
        return Container("dataclass", tuple(held), _type_of(value, path)), list(held.values())
    return None


def build_container(container: Container, children: Mapping[Value, Any], path: str, *, allow_pickle: bool) -> object:
    """The container with its children; when some of a sequence or record are absent, a dict of those that are not.

    Raises:
        UnknownType: its class is not what it was, or its module is not imported.
    """
    kind = container.kind
    if kind in _MAPPINGS or kind == "defaultdict":
        return _build_mapping(container, children, path, allow_pickle=allow_pickle)
    if len(children) < len(container.keys):
        return dict(children)
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](children.values())
    if kind == "deque":
        return deque(children.values(), container.attributes["maxlen"])
    if kind == "namedtuple":
        return tuple.__new__(find_namedtuple(container.type, path, container.keys), children.values())
    if kind == "dataclass":
        return _build_dataclass(container, dict(children), path)
    raise UnknownType(f"{path!r} is a {kind!r}, which this version of ckptstore does not know: use a newer one")


def require_classes(container: Container, path: str, *, allow_pickle: bool) -> None:
    """Raises UnknownType when building the container would, for want of a class."""
    if container.kind == "namedtuple":
        find_namedtuple(container.type, path, container.keys)
    elif container.kind == "dataclass":
        find_dataclass(container.type, path)
    for encoded in (*container.keys, container.attributes.get("vars")):
        decode(encoded, path, allow_pickle=allow_pickle)


def assign_children(live: Any, container: Container, children: Sequence[object], path: str) -> Any:
    """The live container with other children: itself where it can be changed, a new one otherwise."""
    kind = container.kind
    if kind in _MAPPINGS or kind == "defaultdict":
        for key, child in zip(list(live), children, strict=True):
            live[key] = child
    elif kind in {"list", "deque"}:
        for place, child in enumerate(children):
            live[place] = child
    elif kind == "dataclass" and not live.__dataclass_params__.frozen:
        for name, child in zip(container.keys, children, strict=True):
            object.__setattr__(live, name, child)
    else:
        return build_container(container, dict(zip(container.keys, children, strict=True)), path, allow_pickle=True)
    return live


def _build_mapping(container: Container, children: Mapping[Value, Any], path: str, *, allow_pickle: bool) -> object:
    made: dict[Any, Any]
    if container.kind == "defaultdict":
        factory = container.attributes["factory"]
        made = defaultdict(None if factory is None else _FACTORIES[factory])
    else:
        made = _MAPPINGS[container.kind]()
    for key, child in children.items():
        made[key] = child
    if "vars" in container.attributes:
        own: Any = decode(container.attributes["vars"], path, allow_pickle=allow_pickle)
        vars(made).update(own)
    return made


def _build_dataclass(container: Container, attributes: dict[str, object], path: str) -> object:
    cls = find_dataclass(container.type, path)
    try:
        return with_attributes(cls, attributes)
    except (TypeError, AttributeError) as error:
        raise UnknownType(f"{path!r}: the dataclass {container.type} is another now: {error}") from error


def _keys(value: Mapping[Any, Any], path: str) -> tuple[Value, ...]:
    return tuple([key if type(key) is str and key.isascii() else encode(key, path) for key in value])


def _in_order(members: Iterable[object], path: str) -> list[object]:
    """By what is stored of them, the same in every process; but tensors and what is pickled stay as they are found."""
    try:
        return sorted(members, key=lambda member: msgspec.msgpack.encode(_sort_key(member, path)))
    except RecursionError as error:
        raise StateError(f"the state contains itself at {path!r}: a cycle cannot be stored") from error


def _sort_key(value: object, path: str) -> object:
    if is_plain(value):
        return encode(value, path)
    opened = open_container(value, path)
    return type_name(value) if opened is None else (opened[0], [_sort_key(child, path) for child in opened[1]])


def _factory_name(factory: object, path: str) -> str | None:
    if factory is None:
        return None
    for name, known in _FACTORIES.items():
        if factory is known:
            return name
    raise UnsupportedLeaf(path, f"a defaultdict of {factory!r}", "use a dict, or a factory such as list, int or dict")


def _type_of(value: object, path: str) -> str:
    name = class_name(type(value))
    if name is None:
        advice = "its class is not found under its name: define it at the top of a module"
        raise UnsupportedLeaf(path, type_name(value), advice)
    return name


def _is_pure(cls: type) -> bool:
    try:
        object.__new__(cls)
    except TypeError:
        return False
    return True
