"""How much room a number of URLs takes, before the crawl: in one layer, in layers grown
from a smaller start, and in the set of Scrapy's RFPDupeFilter.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from ..bloom import sizing
from ..bloom.header import PAGE

_SET_ENTRY_BYTES = 16  # a pointer and a hash (CPython, Objects/setobject.c)
_SMALLEST_SET = 8
_LARGE_SET = 50_000  # from here on a set doubles, before it grows by four
_ALIGNMENT = 16
_FINGERPRINT_BYTES = 20  # SHA-1


@dataclass(frozen=True)
class Plan:
    """A filter with `urls` in it: `bytes` of bits, in memory as in the files, `probes`
    of the first and the last layer, and the pages that are probably lost on the way."""

    capacity: int
    layers: int
    bits: int
    bytes: int
    file_bytes: int
    first_probes: int
    last_probes: int
    pages_lost: float


def plan(urls: int, error_rate: float, capacity: int | None = None) -> Plan:
    """Return the growing filter that holds `urls`, made for `capacity` (default: all).

    Exact to the byte: this is how `ScalableBloomFilter` grows. Raises ValueError for
    numbers out of range.
    """
    capacity = urls if capacity is None else capacity
    sizing.check_capacity(urls, "urls")
    sizing.check_error_rate(error_rate)
    shapes: list[tuple[int, int]] = []
    held = 0
    lost = older = 0.0
    room = capacity
    while held < urls:
        if shapes:
            room = sizing.layer_capacity(room, capacity, held)
        blocks, probes = sizing.shape(room, sizing.layer_error_rate(error_rate, len(shapes)))
        shapes.append((blocks, probes))
        keys = min(room, urls - held)
        lost += sizing.expected_false_positives(blocks, probes, 0, keys) + older * keys
        older += sizing.error_rate_at(blocks, probes, keys)
        held += keys
    blocks = sum(blocks for blocks, _ in shapes)
    return Plan(
        capacity=capacity,
        layers=len(shapes),
        bits=blocks * sizing.BLOCK_BITS,
        bytes=blocks * PAGE,
        file_bytes=(blocks + 2 * len(shapes)) * PAGE,
        first_probes=shapes[0][1],
        last_probes=shapes[-1][1],
        pages_lost=lost,
    )


def set_bytes(urls: int) -> int:
    """Return the memory of RFPDupeFilter for `urls` fingerprints: a set of 20 bytes
    objects in CPython (Scrapy 2.19; earlier ones keep 40 characters, 32 bytes more).
    """
    fingerprint = sys.getsizeof(bytes(_FINGERPRINT_BYTES))
    each = -(-fingerprint // _ALIGNMENT) * _ALIGNMENT
    return urls * each + _table_bytes(urls) + sys.getsizeof(set())


def _table_bytes(members: int) -> int:
    """Return the size of a set's table after that many members were added: it grows
    when three fifths are taken."""
    size = _SMALLEST_SET
    used = 0
    while True:
        # the number of members at which set_add_entry resizes: used * 5 >= (size - 1) * 3
        used = max(used, -(-(size - 1) * 3 // 5))
        if members < used:
            return 0 if size == _SMALLEST_SET else size * _SET_ENTRY_BYTES
        wanted = used * 2 if used > _LARGE_SET else used * 4
        while size <= wanted:
            size *= 2
