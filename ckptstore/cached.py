"""Attributes that are made when they are first asked for, and kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

Made = TypeVar("Made")


class cached_property(Generic[Made]):  # noqa: N801 - as Python's own
    """As Python's own since 3.12. That of 3.11 takes a lock, for the attribute of all instances at once: a process that
    is forked off while another thread makes one would wait for it for ever.
    """

    def __init__(self, make: Callable[[Any], Made]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Made: ...
    def __get__(self, instance: object | None, owner: type) -> Self | Made:
        if instance is None:
            return self
        made = instance.__dict__[self._name] = self._make(instance)
        return made
