"""BLOOM_BUDGET: how many requests of each download slot a round may have."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

_UNLIMITED = 2**63 - 1


class Budget:
    """The counts of a round: never more than `limits` allow. `"*"` is the limit of each slot
    without one. `changed` names the slots whose counts are to be stored."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self.counted: Counter[str] = Counter()
        self.changed: set[str] = set()

    def limit(self, slot: str) -> int:
        """Return the limit of `slot`."""
        return self._limits.get(slot, self._limits.get("*", _UNLIMITED))

    def admits(self, slot: str) -> bool:
        """Count a new request of `slot`. Return False, and count nothing, if it is over."""
        if self.counted[slot] >= self.limit(slot):
            return False
        self.counted[slot] += 1
        self.changed.add(slot)
        return True

    def count_anew(self, counts: Mapping[str, int]) -> None:
        """Count these requests only: a round begins with them."""
        self.changed.update(self.counted, counts)
        self.counted = Counter(counts)
