"""Figures as people read them, and what a crawl's filter has to say at its end."""

from __future__ import annotations

from math import ceil, floor, log10

from .bloom import sizing
from .seen import FingerprintFilter

_BRIEF = 100

_WASTE_BYTES = 50_000_000
"""A smaller capacity is advised only where it saves more than this."""


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


def pages(number: float) -> str:
    """Return an expected number of pages: `about 12`, `about 0.003`, `none`."""
    if number < 0.0005:
        return "none"
    return f"about {number:,.0f}" if 10 <= number < 1e6 else f"about {number:.1g}"


def visible(text: str) -> str:
    """Return `text` with escapes for what a terminal would obey or hide: control characters,
    separators of lines, characters without width, and what changes the direction of writing."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def in_brief(text: str) -> str:
    """Return `text` as `visible` does, cut off if it is long."""
    text = visible(text)
    return text if len(text) <= _BRIEF else f"{text[:_BRIEF]}…"


def counted(number: int, noun: str) -> str:
    """Return `1 layer`, `2 layers`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def closing_line(bloom_filter: FingerprintFilter, capacity: int, *, finished: bool) -> str:
    """Return what a person wants to know about the filter of a crawl at its end, and no
    more, since the stats have the rest. `capacity` is BLOOM_CAPACITY."""
    items = len(bloom_filter)
    line = (
        f"The filter knows {counted(items, 'request')}; pages probably lost:"
        f" {pages(bloom_filter.expected_false_positives)}; memory: {in_bytes(bloom_filter.nbytes)}"
    )
    if bloom_filter.exact:
        line += f", and an exact table of {in_bytes(bloom_filter.table_nbytes)}"
    line += "."
    better = better_capacity(bloom_filter, capacity, items, finished=finished)
    if better is None:
        return line
    layers = len(bloom_filter.layers)
    what = f"has grown to {layers} layers" if layers > 1 else "is far too large"
    return (
        f"{line} It {what}: with BLOOM_CAPACITY = {better:_} a crawl of this size takes"
        f" {in_bytes(_bytes_at(better, bloom_filter.error_rate))}."
    )


def better_capacity(
    bloom_filter: FingerprintFilter, capacity: int, items: int, *, finished: bool
) -> int | None:
    """Return the BLOOM_CAPACITY that would have served better, or None.

    A filter that has grown costs time on each new request; one that is far too large
    only memory, and only a finished crawl shows that.
    """
    better = round_up(max(items, 1) * 1.1)
    if len(bloom_filter.layers) > 1:
        return better if better > capacity else None
    wasted = bloom_filter.nbytes - _bytes_at(better, bloom_filter.error_rate)
    return better if finished and items < capacity / 10 and wasted > _WASTE_BYTES else None


def round_up(number: float) -> int:
    """Return the next number with at most two digits that are not zero."""
    step: int = 10 ** max(0, floor(log10(max(number, 1))) - 1)
    return ceil(number / step) * step


def _bytes_at(capacity: int, error_rate: float) -> int:
    blocks, _ = sizing.shape(capacity, sizing.layer_error_rate(error_rate, 0))
    return blocks * sizing.BLOCK_BITS // 8
