"""Spans of time, as callers give them."""

from __future__ import annotations

import math
from typing import TypeGuard


def are_seconds(value: object) -> TypeGuard[float]:
    """Whether a clock can count with it, also when it is negative or without end."""
    try:
        return isinstance(value, int | float) and not math.isnan(value)
    except OverflowError:  # an int that no float holds
        return False
