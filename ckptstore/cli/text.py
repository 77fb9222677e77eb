"""Numbers, times and metadata as people read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from math import inf
from typing import Any

MOST_DIGITS = 18
"""Of a whole number that somebody may mean."""

_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")
_AGES = ((86400, "d"), (3600, "h"), (60, "min"))


def size(count: int) -> str:
    """Bytes in powers of 1000 with three digits: `1.46 MB`."""
    value, unit = float(count), 0
    while value >= 999.5 and unit < len(_UNITS) - 1:
        value, unit = value / 1000, unit + 1
    return f"{count} B" if unit == 0 else f"{_three_digits(value)} {_UNITS[unit]}"


def age(seconds: float) -> str:
    """How long ago, or for how long: `3 d`, `5 min`, `ever`."""
    if seconds == inf:
        return "ever"
    for unit, name in _AGES:
        if seconds >= unit:
            return f"{int(seconds // unit)} {name}"
    return f"{max(int(seconds), 0)} s"


def iso(moment: float) -> str:
    """Seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(moment, UTC).isoformat(timespec="milliseconds")


def local(moment: float) -> str:
    """Seconds since 1970 as people here write it."""
    return datetime.fromtimestamp(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def metadata(items: Mapping[str, Any]) -> str:
    """`loss=2.3 lr=0.001`."""
    return " ".join(f"{clean(key)}={metadata_value(value)}" for key, value in items.items())


def metadata_value(value: Any) -> str:
    """`2.3`; what is nested, as JSON."""
    if isinstance(value, float):
        return f"{value:.4g}"
    return clean(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def count(number: int, noun: str, many: str = "") -> str:
    """`1 leaf`, `2,000 leaves`."""
    return f"{number:,} {noun if number == 1 else many or noun + 's'}"


def clean(text: str) -> str:
    """A text whose characters can all be shown: no line breaks, no control sequences of terminals."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def _three_digits(value: float) -> str:
    return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}"
