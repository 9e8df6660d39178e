"""Periods: a number of days, and text such as `12h`, as seconds."""

from __future__ import annotations

import re
from typing import Any

DAY = 86400.0
"""Seconds."""

_UNITS = {"s": 1 / DAY, "m": 60 / DAY, "h": 3600 / DAY, "d": 1.0, "w": 7.0, "": 1.0}
_spelled_time = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([smhdw]?)", re.ASCII).fullmatch


def seconds(value: object) -> float | None:
    """Return a number of days, or text such as `12h` or `30d`, in seconds; None for a value that is
    no time above 0."""
    days: float | None = None
    if isinstance(value, str):
        if match := _spelled_time(value.strip().lower()):
            days = float(match[1]) * _UNITS[match[2]]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        days = float(value)
    return days * DAY if days is not None and 0 < days * DAY < 1e12 else None


def period(value: Any) -> float | None:
    """Return seconds for a number of days, or text such as '12h'; None for none."""
    if value in ("", "None"):
        return None
    if (found := seconds(value)) is None:
        raise ValueError
    return found
