"""Whole numbers such as `10M` and times such as `12h`, in settings and on the command line."""

from __future__ import annotations

import re
from decimal import Decimal

MOST = 10**15
"""No quantity is larger: so many requests would need four petabytes."""

DAY = 86400.0
"""Seconds."""

_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
_spelled = re.compile(
    r"(\d{1,3}(?:,\d{3})+|\d[\d_]*(?:\.\d+)?(?:e\+?\d{1,3})?)([kmgb]?)", re.ASCII
).fullmatch
_UNITS = {"s": 1 / DAY, "m": 60 / DAY, "h": 3600 / DAY, "d": 1.0, "w": 7.0, "": 1.0}
_spelled_time = re.compile(r"(\d+(?:\.\d+)?(?:e[+-]?\d+)?)\s*([smhdw]?)", re.ASCII).fullmatch


def whole_number(value: object) -> int | None:
    """Return `value`, a number or text, as a whole number from 0 to MOST, or None if it is not one:
    5000000, 5e6, "5_000_000", "5,000,000", "5e6", "5M" and "0.005G" are the same."""
    number = Decimal("NaN")
    if isinstance(value, str):
        if match := _spelled(value.strip().lower()):
            number = Decimal(match[1].replace(",", "")) * _SUFFIXES[match[2]]
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        number = Decimal(value)
    if number.is_finite() and 0 <= number <= MOST and number == int(number):
        return int(number)
    return None


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
