"""Who makes the loops of codecs that take long to compile; without numpy, since stores say so when they are opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Get = Callable[..., Any]
"""Gives what a function makes of arguments, or None when that is not there."""


def at_once(make: Callable[..., Any], *arguments: Any) -> Any:
    """Who asks waits."""
    return make(*arguments)


@dataclass
class Making:
    """Of this process: how loops are got. By default those who code wait for them."""

    get: Get = at_once


MAKING = Making()
