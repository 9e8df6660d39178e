"""A stored request is one record with a state: here in memory, in a job or a crawl in Redis for an
operator, too, to whom a Desk (choice.py) shows and changes them."""

from __future__ import annotations

from collections.abc import Collection
from enum import IntEnum
from heapq import heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scrapy import Request

    from .slots import Slots


class State(IntEnum):
    """The states of a record. What is acknowledged or dropped has no record any more."""

    PENDING = 0
    CLAIMED = 1  # by an engine; pending again after a crash
    DELAYED = 2  # pending when it is due
    FAILED = 3
    CAPPED = 4  # over the budget of its slot
    ASKED = 5  # to be retried by the next start, as far as the budget of its slot has room
    QUARANTINED = 6  # lost with two workers of a crawl in Redis, and claimed alone


WAITING = frozenset({State.PENDING, State.DELAYED, State.ASKED, State.QUARANTINED})
KEPT = frozenset({State.FAILED, State.CAPPED})


def rank_of(priority: int, *, start: bool) -> int:
    """Return where a priority of Scrapy's stands in its order, the first one lowest: start requests
    come behind the others of their priority."""
    return -2 * priority + start


class MemoryRecords:
    """Records in memory, of requests that cannot be serialized, and of crawls without a job, in
    heaps: one for each of the `slots`, or one for all. `newest_first` says whether
    the newest is next of equal requests, and of equal start requests, None where these wait among
    the others."""

    def __init__(self, slots: Slots, newest_first: tuple[bool, bool | None]) -> None:
        self.slots = slots
        self.starts_apart = newest_first[1] is not None
        self._signs = tuple(-1 if newest else 1 for newest in newest_first)
        self._heaps: dict[str, list[tuple[int, int, str, Request]]] = {}
        """By slot: rank, place, slot and request."""
        self._delayed: list[tuple[float, int, str, int, Request]] = []
        """When each is due, its number, and its slot, rank and request."""
        self._last = 0

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def delayed(self) -> int:
        """The number of delayed records."""
        return len(self._delayed)

    @property
    def next_due(self) -> float | None:
        """When the next delayed record is due, in seconds since 1970; None without any."""
        return self._delayed[0][0] if self._delayed else None

    def has_only(self, slots: Collection[str]) -> bool:
        """Return True if all records that wait are of these slots."""
        return self.slots.has_only(slots) and all(slot in slots for _, _, slot, *_ in self._delayed)

    def push(self, slot: str, rank: int, request: Request, due: float | None = None) -> None:
        """Add a record."""
        self._last += 1
        if due is not None:
            heappush(self._delayed, (due, self._last, slot, rank, request))
            return
        place = self._last * self._signs[rank & 1]
        self.slots.add(slot)
        line = self._heaps.setdefault(slot if self.slots.by_slot else "", [])
        heappush(line, (rank, place, slot, request))

    def next(self) -> tuple[str, int, Request] | None:
        """Take out the next record; return its slot, rank and request."""
        slot = self.slots.next()
        if slot is None:
            return None
        heap = self._heaps[slot]
        if self.slots.asks_last(slot):
            last = max((each for each in heap if each[0] == heap[0][0]), key=lambda each: each[1])
            heap.remove(last)
            heap.sort()
        else:
            last = heappop(heap)
        if not heap:
            del self._heaps[slot]
        rank, _, slot, request = last
        self.slots.add(slot, -1)
        return slot, rank, request

    def take_due(self, now: float) -> None:
        """Make all delayed records pending that are due."""
        while self._delayed and self._delayed[0][0] <= now:
            _, _, slot, rank, request = heappop(self._delayed)
            self.push(slot, rank, request)
