"""The seam between a dupefilter and its filter: what answers `add`; and the closing line of the
log."""

from __future__ import annotations

from collections.abc import Collection

from .amounts import counted, in_bytes, pages_text
from .bloom import sizing
from .bloom.layers import Layered


class Seen:
    """The fingerprints that a crawl has seen: those in `filter`, and in memory those that it did
    not take, oldest first.

    `add` is the one question of a dupefilter. It raises as the filter does, and keeps nothing then.
    With a scheduler that stores the requests crawl/overlay.py answers it.
    """

    def __init__(self, filter: Layered) -> None:  # noqa: A002 - what it is
        self.filter = filter
        self._in_memory: dict[bytes, None] = {}
        self.uncommitted: Collection[bytes] = self._in_memory.keys()

    def add(self, fingerprint: bytes) -> bool:
        """Return True if `fingerprint` was seen, else keep it, and False."""
        return fingerprint in self._in_memory or self.filter.add(fingerprint)

    def add_unchecked(self, fingerprint: bytes) -> None:
        """Keep in memory a fingerprint that the filter did not take. Never raises."""
        self._in_memory[fingerprint] = None

    def release(self, fingerprint: bytes) -> None:
        """Add `fingerprint`, which may be in memory, to the filter. Raises as that does, and
        changes nothing then."""
        self.filter.add(fingerprint)
        self._in_memory.pop(fingerprint, None)

    def forget(self, fingerprint: bytes) -> bool:
        """Remove a `fingerprint` in memory; return False if it is not there."""
        return self._in_memory.pop(fingerprint, False) is None

    def __len__(self) -> int:
        """Number of fingerprints, those in memory included."""
        return len(self.filter) + len(self._in_memory)

    def stats(self) -> dict[str, float]:
        """Return the current figures by the name of their stat; `items` includes fingerprints in
        memory. Cost: some ms."""
        known = self.filter
        figures = {
            "items": len(self),
            "layers": len(known.capacities),
            "bytes": known.nbytes,
            "fill_ratio": known.fill_ratio,
            "error_rate": known.current_error_rate,
            "expected_false_positives": known.expected_false_positives,
        }
        if known.exact:
            figures["table_bytes"] = known.table_nbytes
            figures["false_positives_avoided"] = known.false_positives_avoided
        return figures


def closing_line(bloom_filter: Layered, capacity: int) -> str:
    """Return requests, probably lost pages, memory, and for a filter that has grown, which costs
    time on each new request, a better BLOOM_CAPACITY than `capacity`."""
    items, layers = len(bloom_filter), len(bloom_filter.capacities)
    line = (
        f"The filter knows {counted(items, 'request')}; pages probably lost:"
        f" {pages_text(bloom_filter.expected_false_positives)}; memory:"
        f" {in_bytes(bloom_filter.nbytes)}"
    )
    if bloom_filter.exact:
        line += f", and an exact table of {in_bytes(bloom_filter.table_nbytes)}"
    better = int(float(f"{items * 1.15:.1e}"))  # two digits, which may be 5 % less
    if layers == 1 or better <= capacity:
        return f"{line}."
    blocks, _ = sizing.shape(better, sizing.layer_error_rate(bloom_filter.error_rate, 0))
    size = in_bytes(blocks * sizing.BLOCK_BITS // 8)
    return (
        f"{line}. It has grown to {layers} layers: with BLOOM_CAPACITY = {better:_} a crawl of this"
        f" size takes {size}."
    )
