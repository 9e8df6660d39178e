"""What a crawl has seen: fingerprints in a filter, and those that may not enter it yet."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol


class FilterLayer(Protocol):
    """One of the filters that a growing one consists of."""

    @property
    def capacity(self) -> int:
        """Number of keys that it was made for."""


class FingerprintFilter(Protocol):
    """A growing set of fingerprints, wherever it is kept, that may take a new one for a
    known one: in memory or in JOBDIR, or in Redis.

    While `growing` is False it takes more keys than it was made for.
    `false_positives_avoided` counts those that an exact table has found out since it was
    opened. Any method may raise OSError, MemoryError or BloomError, except
    where it says otherwise.
    """

    growing: bool
    false_positives_avoided: int

    def add(self, key: bytes, /) -> bool:
        """Add `key`; return True if it was there already, or is taken for it."""

    def __contains__(self, key: bytes, /) -> bool:
        """Return True if `key` was added, or is taken for one that was."""

    def __len__(self) -> int:
        """Number of keys added. Never raises."""

    @property
    def exact(self) -> bool:
        """True if no new key is taken for a known one."""

    @property
    def error_rate(self) -> float:
        """The bound on the chance that a new key is taken for a known one."""

    @property
    def current_error_rate(self) -> float:
        """That chance at the present fill."""

    @property
    def expected_false_positives(self) -> float:
        """How many new keys were probably taken for known ones so far."""

    @property
    def fill_ratio(self) -> float:
        """Share of the bits that are set, 0 to 1."""

    @property
    def nbytes(self) -> int:
        """Bytes of its bits."""

    @property
    def table_nbytes(self) -> int:
        """Bytes of its exact tables, 0 without."""

    @property
    def layers(self) -> Sequence[FilterLayer]:
        """Its layers, oldest first."""

    def close(self) -> None:
        """Make durable what was added, and let go of it. Closing twice is fine."""


@dataclass(frozen=True)
class SeenStats:
    """Figures of what was seen; `items` counts the held ones too. The last two are None
    unless the filter is exact."""

    items: int
    layers: int
    bytes: int
    fill_ratio: float
    error_rate: float
    expected_false_positives: float
    table_bytes: int | None
    false_positives_avoided: int | None


class Seen:
    """The fingerprints in `filter`, and held ones, which are in memory only.

    A held fingerprint counts as seen. It enters the filter when it is released, or is
    forgotten: a bit that is set before its request is safe loses a page in a crash, a
    bit that is missing only repeats one.
    """

    def __init__(self, filter: FingerprintFilter) -> None:  # noqa: A002 - what it is
        self.filter = filter
        self._held: dict[bytes, None] = {}

    @property
    def held(self) -> Collection[bytes]:
        """The held fingerprints, oldest first."""
        return self._held.keys()

    def add(self, fingerprint: bytes) -> bool:
        """Return True if `fingerprint` was seen, else add it. Raises as the filter does."""
        return fingerprint in self._held or self.filter.add(fingerprint)

    def hold(self, fingerprint: bytes) -> bool:
        """Return True if `fingerprint` was seen, else hold it. Raises as the filter does."""
        if fingerprint in self._held or fingerprint in self.filter:
            return True
        self._held[fingerprint] = None
        return False

    def hold_unasked(self, fingerprint: bytes) -> None:
        """Hold `fingerprint`, whatever the filter may know of it. Never raises."""
        self._held[fingerprint] = None

    def __contains__(self, fingerprint: bytes) -> bool:
        """Return True if `fingerprint` was seen. Raises as the filter does."""
        return fingerprint in self._held or fingerprint in self.filter

    def release(self, fingerprint: bytes) -> None:
        """Move `fingerprint`, held or not, into the filter. Raises as the filter does;
        it stays held then."""
        self.filter.add(fingerprint)
        self._held.pop(fingerprint, None)

    def forget(self, fingerprint: bytes) -> bool:
        """Return True if `fingerprint` was held; it is not any more."""
        if fingerprint not in self._held:
            return False
        del self._held[fingerprint]
        return True

    def forget_held(self) -> None:
        """Forget all that is held."""
        self._held.clear()

    def __len__(self) -> int:
        """Number of fingerprints, held ones included."""
        return len(self.filter) + len(self._held)

    def stats(self) -> SeenStats:
        """Return the figures of the moment. Cost: some ms."""
        exact = self.filter.exact
        return SeenStats(
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
        """Close the filter. What is still held is never written."""
        self.filter.close()
