"""Who makes the loops of codecs that take long to compile, and who keeps them.

Stores say so when they are opened, so that this takes no numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

Get = Callable[..., Any]
"""Gives what a function makes of arguments, or None when that is not there."""


def at_once(make: Callable[..., Any], *arguments: Any) -> Any:
    """Who asks waits."""
    return make(*arguments)


class Kept(Protocol):
    """Machine code that later processes find, by the names of loops."""

    def read(self, name: str) -> bytes | None:
        """None when there is none."""

    def write(self, name: str, code: bytes) -> None:
        """Keep it, if that can be."""


class Nowhere:
    """Nothing is kept."""

    def read(self, name: str) -> bytes | None:
        return None

    def write(self, name: str, code: bytes) -> None:
        pass


@dataclass
class Making:
    """Of this process: how loops are got, and where they are kept. By default those who code wait for them."""

    get: Get = at_once
    kept: Kept = field(default_factory=Nowhere)


MAKING = Making()
