"""The names of classes, and the classes of names, without ever importing a module or running its code."""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from types import MemberDescriptorType

from ckptstore.errors import UnknownType


def class_name(cls: type) -> str | None:
    """`module:qualname` of a class that can be found again under it, or None."""
    name = f"{cls.__module__}:{cls.__qualname__}"
    return name if _find(name) is cls else None


def find_class(name: str, path: str) -> type:
    """The class of a name, from a module that this process has imported. Raises UnknownType."""
    found = _find(name)
    if not isinstance(found, type):
        module, _, qualname = name.partition(":")
        raise UnknownType(f"{path!r} needs the class {qualname}: import {module} first, which must define it")
    return found


def find_enum(name: str, path: str) -> type[enum.Enum]:
    """The Enum of a name. Raises UnknownType."""
    found = find_class(name, path)
    if not issubclass(found, enum.Enum):
        raise UnknownType(f"{path!r} needs the Enum {name}, but that is another class now")
    return found


def find_namedtuple(name: str, path: str, fields: tuple[str, ...]) -> type[tuple[object, ...]]:
    """The namedtuple of a name and fields. Raises UnknownType."""
    found = find_class(name, path)
    if not is_namedtuple(found) or getattr(found, "_fields", ()) != fields:
        raise UnknownType(f"{path!r} needs the namedtuple {name} with fields {list(fields)}, but that is another now")
    return found


def find_dataclass(name: str, path: str) -> type:
    """The dataclass of a name. Raises UnknownType."""
    found = find_class(name, path)
    if not dataclasses.is_dataclass(found):
        raise UnknownType(f"{path!r} needs the dataclass {name}, but that is another class now")
    return found


def is_namedtuple(cls: type) -> bool:
    """Whether instances are tuples with named fields and nothing else."""
    fields = getattr(cls, "_fields", None)
    return issubclass(cls, tuple) and isinstance(fields, tuple) and callable(getattr(cls, "_make", None))


def attributes_of(instance: object) -> dict[str, object]:
    """All that a dataclass's instance holds, fields first, without running a property."""
    held = dict(_in_slots(instance)) | getattr(instance, "__dict__", {})
    names = [field.name for field in dataclasses.fields(instance)]  # type: ignore[arg-type]
    return {name: held.pop(name) for name in names if name in held} | held


def with_attributes(cls: type, attributes: dict[str, object]) -> object:
    """An instance that holds `attributes`, made without running the class's code."""
    instance: object = object.__new__(cls)
    for name, value in attributes.items():
        if name in _slots(cls):
            object.__setattr__(instance, name, value)
        else:
            vars(instance)[name] = value
    return instance


def _in_slots(instance: object) -> Iterator[tuple[str, object]]:
    """What its slots hold, those of classes without fields too."""
    cls: type = type(instance)
    for name, slot in _slots(cls).items():
        with suppress(AttributeError):  # it holds nothing
            yield name, slot.__get__(instance)


@lru_cache
def _slots(cls: type) -> dict[str, MemberDescriptorType]:
    found = {name: member for base in reversed(cls.__mro__) for name, member in vars(base).items()}
    return {name: member for name, member in found.items() if isinstance(member, MemberDescriptorType)}


def _find(name: str) -> object:
    module, _, qualname = name.partition(":")
    found: object = sys.modules.get(module)
    for part in qualname.split("."):
        found = getattr(found, "__dict__", {}).get(part)
    return found
