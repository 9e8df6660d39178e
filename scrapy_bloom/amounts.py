"""Amounts as text, and text such as `10M` and `12h` as numbers."""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime, timezone
from decimal import Decimal
from math import isinf

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
_BRIEF = 100


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


def in_bytes(number: float) -> str:
    """Return a number of bytes with its unit: `4.0 MB`."""
    units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"]
    while number >= 999.5 and len(units) > 1:
        number /= 1000
        del units[0]
    return f"{number:.3g} {units[0]}"


def in_percent(share: float) -> str:
    """Return a share of 1 in percent, to three digits."""
    return f"{100 * share:.3g} %"


def in_short(rate: float) -> str:
    """Return an error rate to two digits, `< 1e-15` for the smallest."""
    return f"{rate:.2g}" if rate >= 1e-15 or not rate else "< 1e-15"


def pages_text(number: float) -> str:
    """Return an expected number of pages: `about 12`, `about 0.003`, `none`."""
    if number < 0.0005:
        return "none"
    return f"about {number:,.0f}" if 10 <= number < 1e6 else f"about {number:.1g}"


def escaped(text: str) -> str:
    """Return `text` with escapes for characters that a terminal obeys or hides: control characters,
    line separators, zero-width characters, and changes of the writing direction."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def in_brief(text: str) -> str:
    """Return `escaped(text)`, cut off after 100 characters."""
    text = escaped(text)
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}…"


def shortened(text: str, most: int) -> str:
    """Return `escaped(text)` with at most so many characters: what is cut is in the middle."""
    text = escaped(text)
    if len(text) <= most:
        return text
    last = (most - 1) * 2 // 3
    return f"{text[: most - 1 - last]}…{text[len(text) - last :]}"


def without_user(uri: str) -> str:
    """Return a URI without what may be a user and a password."""
    scheme, mark, rest = uri.partition("://")
    return f"{scheme}{mark}…{rest.rpartition('@')[2]}" if "@" in rest else uri


def feeds_named(uris: Iterable[object]) -> str:
    """Return the names of feeds in brief, without what may be a password."""
    return in_brief(", ".join(without_user(str(uri)) for uri in sorted(uris, key=str)))


def duration(seconds: float | None) -> str:
    """Return a time in its two largest units: `2 h 5 min`."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    for unit, size, part, rest in (("d", 86400, "h", 3600), ("h", 3600, "min", 60)):
        if seconds >= size:
            return f"{seconds // size:,.0f} {unit} {seconds % size // rest:.0f} {part}"
    return f"{seconds // 60:.0f} min {seconds % 60:.0f} s" if seconds >= 60 else f"{seconds:.0f} s"


def in_utc(when: float) -> str:
    """Return seconds since the epoch as a date and a time of ISO 8601, or as they are where a wrong
    clock or a damage has left what no calendar has."""
    try:
        return datetime.fromtimestamp(when, timezone.utc).isoformat(timespec="seconds")
    except (OSError, OverflowError, ValueError):
        return f"{when:g} s"


def waiting_text(later: int, next_due: float | None, held: int) -> str:
    """Return what waits for its time: `12,000 later, the next in 41 s; 3 hosts held`, empty if
    nothing does."""
    parts = []
    if later:
        soon = "" if next_due is None else f", the next in {duration(next_due)}"
        parts.append(f"{later:,} later{soon}")
    if held:
        parts.append(f"{counted(held, 'host')} held")
    return "; ".join(parts)


def held_for(seconds: float | None) -> str:
    """Return how long a slot is held yet, None or infinite until its release."""
    is_endless = seconds is None or isinf(seconds)
    return "until its release" if is_endless else f"for {seconds:,.0f} s"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 layer`, `2 layers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
