"""Amounts: text such as `10M` as a number, and numbers as text."""

from __future__ import annotations

import re
from decimal import Decimal

MOST = 10**15
"""No quantity is larger: so many requests would need four petabytes."""

_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "b": 10**9}
_spelled = re.compile(
    r"(\d{1,3}(?:,\d{3})+|\d[\d_]*(?:\.\d+)?(?:e\+?\d{1,3})?)([kmgb]?)", re.ASCII
).fullmatch


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
