"""The line about the filter in the log when the spider closes."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import TYPE_CHECKING

from ..bloom import sizing
from ..reporting import counted, in_bytes, pages

if TYPE_CHECKING:
    from .overlay import FingerprintFilter

_WASTE_BYTES = 50_000_000
"""The least saving for which a smaller capacity is advised."""


def closing_line(bloom_filter: FingerprintFilter, capacity: int, *, finished: bool) -> str:
    """Return requests, probably lost pages, memory and a better BLOOM_CAPACITY, if there is one.
    The stats have the other figures. `capacity` is BLOOM_CAPACITY."""
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
    """Return the BLOOM_CAPACITY that fits a crawl of `items` requests better, or None.

    A filter that has grown costs time on each new request. A filter that is far too large costs
    memory only, and only a finished crawl shows that.
    """
    better = round_up(max(items, 1) * 1.1)
    if len(bloom_filter.layers) > 1:
        return better if better > capacity else None
    wasted = bloom_filter.nbytes - _bytes_at(better, bloom_filter.error_rate)
    return better if finished and items < capacity / 10 and wasted > _WASTE_BYTES else None


def round_up(number: float) -> int:
    """Return the least number with at most two significant digits that is not below `number`."""
    step: int = 10 ** max(0, floor(log10(max(number, 1))) - 1)
    return ceil(number / step) * step


def _bytes_at(capacity: int, error_rate: float) -> int:
    blocks, _ = sizing.shape(capacity, sizing.layer_error_rate(error_rate, 0))
    return blocks * sizing.BLOCK_BITS // 8
