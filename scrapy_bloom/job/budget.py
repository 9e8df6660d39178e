"""BLOOM_BUDGET: how many requests of each download slot a round may have."""

from __future__ import annotations

from collections.abc import Callable, Mapping

_UNLIMITED = 2**63 - 1


class Budget:
    """The counts of a round: never more than `limits` allow. `"*"` is the limit of each slot
    without one. `counted` has the counts of some slots, `stored` returns that of any other;
    `changed` names those that are to be stored."""

    def __init__(self, limits: Mapping[str, int]) -> None:
        self._limits = limits
        self.counted: dict[str, int] = {}
        self.changed: set[str] = set()
        self.stored: Callable[[str], int] = lambda slot: 0

    def admits(self, slot: str) -> bool:
        """Count a new request of `slot`. Return False, and count nothing, if it is over."""
        count = self.counted[slot] if slot in self.counted else self.stored(slot)
        if count >= self._limits.get(slot, self._limits.get("*", _UNLIMITED)):
            return False
        self.counted[slot] = count + 1
        self.changed.add(slot)
        return True
