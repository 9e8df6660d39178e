"""Figures and times as the commands print them."""

from __future__ import annotations

from datetime import datetime, timezone
from math import isinf

from ..texts import escaped


def in_percent(share: float) -> str:
    """Return a share of 1 in percent, to three digits."""
    return f"{100 * share:.3g} %"


def in_short(rate: float) -> str:
    """Return an error rate to two digits, `< 1e-15` for the smallest."""
    return f"{rate:.2g}" if rate >= 1e-15 or not rate else "< 1e-15"


def shortened(text: str, most: int) -> str:
    """Return `escaped(text)` with at most so many characters: what is cut is in the middle."""
    text = escaped(text)
    if len(text) <= most:
        return text
    last = (most - 1) * 2 // 3
    return f"{text[: most - 1 - last]}…{text[len(text) - last :]}"


def in_utc(when: float) -> str:
    """Return seconds since the epoch as a date and a time of ISO 8601, or as they are where a wrong
    clock or a damage has left what no calendar has."""
    try:
        return datetime.fromtimestamp(when, timezone.utc).isoformat(timespec="seconds")
    except (OSError, OverflowError, ValueError):
        return f"{when:g} s"


def held_for(seconds: float | None) -> str:
    """Return how long a slot is held yet, None or infinite until its release."""
    return "until its release" if seconds is None or isinf(seconds) else f"for {seconds:,.0f} s"
