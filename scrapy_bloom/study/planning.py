"""The memory for a number of URLs, calculated before the crawl: in one layer, in layers grown from
a smaller start, and in the set of Scrapy's RFPDupeFilter.
"""

from __future__ import annotations

import sys

from ..bloom import sizing
from ..bloom.header import PAGE

_SET_ENTRY_BYTES = 16  # a pointer and a hash (CPython, Objects/setobject.c)
_SMALLEST_SET = 8
_LARGE_SET = 50_000  # from here on a set doubles, before it grows by four
_ALIGNMENT = 16
_FINGERPRINT_BYTES = 20  # SHA-1


class Plan:
    """A growing filter with `urls` in it, made for `capacity` (default: all): `bytes` of bits, in
    memory as in the files, and of the exact tables in the files, `probes` of the first and the last
    layer, and the pages that are probably lost on the way.

    Exact to the byte: this is how `ScalableBloomFilter` grows. Raises ValueError for
    numbers out of range.
    """

    def __init__(
        self, urls: int, error_rate: float, capacity: int | None = None, *, exact: bool = False
    ) -> None:
        sizing.check_capacity(urls, "urls")
        sizing.check_error_rate(error_rate)
        capacity = room = urls if capacity is None else capacity
        layers: list[sizing.LayerLoad] = []
        held = 0
        while held < urls:
            if layers:
                room = sizing.layer_capacity(room, capacity, held)
            shape = sizing.shape(room, sizing.layer_error_rate(error_rate, len(layers)))
            keys = min(room, urls - held)
            table = sizing.pages_in_table(room) if exact else 0
            layers.append(sizing.LayerLoad(*shape, keys, table_pages=table))
            held += keys
        blocks = sum(layer.blocks for layer in layers)
        table_pages = sum(layer.table_pages for layer in layers)
        self.capacity = capacity
        self.layers = len(layers)
        self.bits = blocks * sizing.BLOCK_BITS
        self.bytes = blocks * PAGE
        self.table_bytes = table_pages * PAGE
        self.file_bytes = (blocks + table_pages + 2 * len(layers)) * PAGE
        self.first_probes = layers[0].probes
        self.last_probes = layers[-1].probes
        self.pages_lost = sizing.total_false_positives(layers)


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
