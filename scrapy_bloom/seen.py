"""The seam between a dupefilter and its filter: which function answers `add`; and the closing line
of the log. It decides nothing itself."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from math import ceil, floor, log10
from typing import Protocol

from .amounts import counted, in_bytes, pages_text
from .bloom import sizing

_WASTE_BYTES = 50_000_000
"""The least saving for which a smaller capacity is advised."""


class FingerprintFilter(Protocol):
    """A growing filter of fingerprints in memory, in JOBDIR or in Redis.

    While `growing` is False, its newest layer takes more keys than its capacity.
    `false_positives_avoided` counts the new keys, since the filter was opened, that only the exact
    table showed to be new. Methods may raise OSError, MemoryError or BloomError unless they say
    otherwise.
    """

    growing: bool
    false_positives_avoided: int

    def add(self, key: bytes, /) -> bool:
        """Add `key`; return True if it was present already, or by a false positive."""

    def __contains__(self, key: bytes, /) -> bool:
        """Return True if `key` was added, or by a false positive."""

    def __len__(self) -> int:
        """Number of keys added. Never raises."""

    @property
    def exact(self) -> bool:
        """True if an exact table rules out false positives."""

    @property
    def error_rate(self) -> float:
        """The bound on the probability of taking a new key for a known one."""

    @property
    def current_error_rate(self) -> float:
        """The probability of taking a new key for a known one at the present fill."""

    @property
    def expected_false_positives(self) -> float:
        """Expected number of new keys taken for known ones so far."""

    @property
    def fill_ratio(self) -> float:
        """Share of the bits that are set, 0 to 1."""

    @property
    def nbytes(self) -> int:
        """Bytes of the bit arrays."""

    @property
    def table_nbytes(self) -> int:
        """Bytes of the exact tables, 0 without."""

    @property
    def capacities(self) -> Sequence[int]:
        """Number of keys up to which each layer stays within its error rate, oldest first."""

    def close(self) -> None:
        """Make all additions durable and release the filter. A second call does nothing."""


class Seen:
    """The fingerprints that a crawl has seen: those in `filter`, and those in memory.

    `add` is the one question of a dupefilter: return True if the fingerprint was seen, else keep
    it, and False. It raises as the filter does, and keeps nothing then. It is the filter's own
    function until a fingerprint is in memory, so `use` of the dupefilter is called again then.
    """

    add: Callable[[bytes], bool]

    def __init__(self, filter: FingerprintFilter) -> None:  # noqa: A002 - what it is
        self._in_memory: dict[bytes, None] = {}
        self.uncommitted: Collection[bytes] = self._in_memory.keys()
        """The fingerprints in memory, oldest first."""
        self.put(filter)

    def put(self, filter: FingerprintFilter) -> None:  # noqa: A002 - what it is
        """Ask `filter` from now on."""
        self.filter = filter
        self.add = filter.add

    def add_unchecked(self, fingerprint: bytes) -> None:
        """Keep in memory a fingerprint that the filter did not take. Never raises."""
        self._in_memory[fingerprint] = None
        self.add = self._add_to_either

    def _add_to_either(self, fingerprint: bytes) -> bool:
        return fingerprint in self._in_memory or self.filter.add(fingerprint)

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

    def close(self) -> None:
        """Close the filter. Fingerprints in memory are lost."""
        self.filter.close()


def closing_line(bloom_filter: FingerprintFilter, capacity: int, *, finished: bool) -> str:
    """Return requests, probably lost pages, memory and a better BLOOM_CAPACITY, if there is one.
    The stats have the other figures. `capacity` is BLOOM_CAPACITY.

    A filter that has grown costs time on each new request. A filter that is far too large costs
    memory only, and only a finished crawl shows that.
    """
    items, layers = len(bloom_filter), len(bloom_filter.capacities)
    line = (
        f"The filter knows {counted(items, 'request')}; pages probably lost:"
        f" {pages_text(bloom_filter.expected_false_positives)}; memory:"
        f" {in_bytes(bloom_filter.nbytes)}"
    )
    if bloom_filter.exact:
        line += f", and an exact table of {in_bytes(bloom_filter.table_nbytes)}"
    better = round_up(max(items, 1) * 1.1)
    blocks, _ = sizing.shape(better, sizing.layer_error_rate(bloom_filter.error_rate, 0))
    size = blocks * sizing.BLOCK_BITS // 8
    if layers > 1:
        what = f"has grown to {layers} layers" if better > capacity else ""
    else:
        wasted = finished and items < capacity / 10 and bloom_filter.nbytes - size > _WASTE_BYTES
        what = "is far too large" if wasted else ""
    advice = f" It {what}: with BLOOM_CAPACITY = {better:_} a crawl of this size takes"
    return f"{line}.{advice} {in_bytes(size)}." if what else f"{line}."


def round_up(number: float) -> int:
    """Return the least number with at most two significant digits that is not below `number`."""
    step: int = 10 ** max(0, floor(log10(max(number, 1))) - 1)
    return ceil(number / step) * step
