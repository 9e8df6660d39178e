"""The filter, an overlay of uncommitted fingerprints, and what the log says of it at the end."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil, floor, log10
from typing import Protocol

from ..bloom import sizing
from ..reporting import counted, in_bytes, pages

_WASTE_BYTES = 50_000_000
"""The least saving for which a smaller capacity is advised."""


class FilterLayer(Protocol):
    """One layer of a growing filter."""

    @property
    def capacity(self) -> int:
        """Number of keys up to which the layer stays within its error rate."""


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
    def layers(self) -> Sequence[FilterLayer]:
        """The layers, oldest first."""

    def close(self) -> None:
        """Make all additions durable and release the filter. A second call does nothing."""


@dataclass(frozen=True)
class FilterStats:
    """Figures for the stats; `items` includes uncommitted fingerprints. The last two are None
    unless the filter is exact."""

    items: int
    layers: int
    bytes: int
    fill_ratio: float
    error_rate: float
    expected_false_positives: float
    table_bytes: int | None
    false_positives_avoided: int | None


class Overlay:
    """The fingerprints in `filter`, and uncommitted ones, in memory only.

    An uncommitted fingerprint counts as seen until it is released into the filter, or forgotten. A
    bit that is set before its request is stored loses a page in a crash; a missing bit only
    repeats one.
    """

    def __init__(self, filter: FingerprintFilter) -> None:  # noqa: A002 - what it is
        self.filter = filter
        self._uncommitted: dict[bytes, None] = {}

    @property
    def uncommitted(self) -> Collection[bytes]:
        """The uncommitted fingerprints, oldest first."""
        return self._uncommitted.keys()

    def add(self, fingerprint: bytes) -> bool:
        """Return True if `fingerprint` was seen, else add it. Raises as the filter does."""
        return fingerprint in self._uncommitted or self.filter.add(fingerprint)

    def add_uncommitted(self, fingerprint: bytes) -> bool:
        """Return True if `fingerprint` was seen, else add it, uncommitted. Raises as the filter
        does."""
        if fingerprint in self._uncommitted or fingerprint in self.filter:
            return True
        self._uncommitted[fingerprint] = None
        return False

    def add_unchecked(self, fingerprint: bytes) -> None:
        """Add `fingerprint`, uncommitted, without a look into the filter. Never raises."""
        self._uncommitted[fingerprint] = None

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return True if `fingerprint` was seen. Raises as the filter does."""
        return fingerprint in self._uncommitted or fingerprint in self.filter

    def release(self, fingerprint: bytes) -> None:
        """Add `fingerprint` to the filter; it is uncommitted no longer. Raises as the filter does,
        and changes nothing then."""
        self.filter.add(fingerprint)
        self._uncommitted.pop(fingerprint, None)

    def forget(self, fingerprint: bytes) -> bool:
        """Remove an uncommitted `fingerprint`; return False if it is not uncommitted."""
        if fingerprint not in self._uncommitted:
            return False
        del self._uncommitted[fingerprint]
        return True

    def drop_uncommitted(self) -> None:
        """Remove all uncommitted fingerprints."""
        self._uncommitted.clear()

    def __len__(self) -> int:
        """Number of fingerprints, uncommitted ones included."""
        return len(self.filter) + len(self._uncommitted)

    def stats(self) -> FilterStats:
        """Return the current figures. Cost: some ms."""
        exact = self.filter.exact
        return FilterStats(
            items=len(self),
            layers=len(self.filter.layers),
            bytes=self.filter.nbytes,
            fill_ratio=self.filter.fill_ratio,
            error_rate=self.filter.current_error_rate,
            expected_false_positives=self.filter.expected_false_positives,
            table_bytes=self.filter.table_nbytes if exact else None,
            false_positives_avoided=self.filter.false_positives_avoided if exact else None,
        )

    def close(self) -> None:
        """Close the filter. Uncommitted fingerprints are lost."""
        self.filter.close()


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
