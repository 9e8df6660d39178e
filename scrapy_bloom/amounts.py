"""Amounts: text such as `10M` or `12h` as a number, and numbers as text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal

MOST = 10**15
"""No quantity is larger: so many requests would need four petabytes."""

DAY = 86400.0
"""Seconds."""

_COUNTS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_spelled = re.compile(
    r"(\d{1,3}(?:,\d{3})+|\d[\d_]*(?:\.\d+)?(?:e[+-]?\d{1,3})?)\s*([a-z]?)", re.ASCII
).fullmatch


def _amount(value: object, units: Mapping[str, float]) -> Decimal:
    """Return `value`, a number or text, times its unit; NaN if it has none of these `units`."""
    if isinstance(value, str):
        match = _spelled(value.strip().lower())
        if match and match[2] in units:
            return Decimal(match[1].replace(",", "")) * Decimal(units[match[2]])
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        return Decimal(value) * Decimal(units[""])
    return Decimal("NaN")


def whole_number(value: object) -> int | None:
    """Return `value`, a number or text, as a whole number from 0 to MOST, or None if it is not one:
    5000000, 5e6, "5_000_000", "5,000,000", "5e6", "5M" and "0.005G" are the same."""
    number = _amount(value, _COUNTS)
    if number.is_finite() and 0 <= number <= MOST and number == int(number):
        return int(number)
    return None


def seconds(value: object, unit: float = DAY) -> float | None:
    """Return a number of days, or of another `unit`, or text such as `12h` or `30d`, in seconds;
    None for a value that is no time from 0 on."""
    found = float(_amount(value, {**_SECONDS, "": unit}))
    return found if 0 <= found < 1e12 else None


def in_bytes(number: float) -> str:
    """Return a number of bytes with its unit: `4.0 MB`."""
    units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"]
    while number >= 999.5 and len(units) > 1:
        number /= 1000
        del units[0]
    return f"{number:.3g} {units[0]}"


def pages_text(number: float) -> str:
    """Return an expected number of pages: `about 12`, `about 0.003`, `none`."""
    if number < 0.0005:
        return "none"
    return f"about {number:,.0f}" if 10 <= number < 1e6 else f"about {number:.1g}"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 layer`, `2 layers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
