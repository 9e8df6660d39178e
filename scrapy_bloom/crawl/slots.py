"""Download slots: which one is next, in the order of Scrapy's DownloaderAwarePriorityQueue."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from ..scrapy_private.slots import slot_loads, slots_take_turns

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self


class Slots:
    """The slots that have pending records, and how many. The length is the number of records.

    Costs do not grow with the number of slots, apart from the moving of 8 bytes a slot when one
    comes or goes. `load` tells how many requests the downloader has of a slot.
    """

    by_slot = True  # each slot has a line of its own

    def __init__(
        self, load: Callable[[str], float] = lambda slot: 0, *, takes_turns: bool = True
    ) -> None:
        self._load = load
        self._takes_turns = takes_turns
        self.likely: Collection[str] | None = None
        """While requests are sent one by one, to find one slot that answers: those that are asked
        first."""
        self.names: list[str] = []
        """The slots that may be next, sorted."""
        self._last: str | None = None
        self._pending: dict[str, int] = {}
        self._total = 0
        self._held: set[str] = set()
        self.asks_last: Callable[[str], bool] = lambda slot: False
        """Whether the last in line of its highest priority is the next request of a slot."""

    @classmethod
    def of(cls, crawler: Crawler) -> Self:
        """Return the slots of `crawler`, in the order of its release of Scrapy."""
        return cls(slot_loads(crawler), takes_turns=slots_take_turns())

    def __len__(self) -> int:
        return self._total

    def add(self, slot: str, number: int = 1) -> None:
        """Count `number` more pending records of `slot`, fewer if it is negative."""
        before = self._pending.get(slot, 0)
        if before + number:
            if not before and slot not in self._held:
                insort(self.names, slot)  # raises TypeError for a slot that is no text
            self._pending[slot] = before + number
        elif before:
            del self._pending[slot]
            if slot not in self._held:
                del self.names[bisect_left(self.names, slot)]
        self._total += number

    def has_only(self, slots: Iterable[str]) -> bool:
        """Return True if all records are of these."""
        return self._total == sum(self._pending.get(slot, 0) for slot in slots)

    def recount(self, pending: Mapping[str, int]) -> None:
        """Take `pending` for the numbers of all slots."""
        self._pending = dict(pending)
        self._total = sum(pending.values())
        self.names = sorted(slot for slot in pending if slot not in self._held)

    def hold(self, slot: str) -> None:
        """Return `slot` no more, which may have no records, until its `release`."""
        if slot not in self._held:
            self._held.add(slot)
            if slot in self._pending:
                del self.names[bisect_left(self.names, slot)]

    def release(self, slot: str) -> None:
        """Return `slot` again."""
        if slot in self._held:
            self._held.remove(slot)
            if slot in self._pending:
                insort(self.names, slot)

    def next(self) -> str | None:
        """Return the slot with the fewest active downloads that is not on hold: of equal ones the
        first by name, or if they take turns, the first behind the last that was returned. Cost: a
        look at each slot with active downloads, at most."""
        names, start = self.names, 0
        if self.likely is not None:
            for slot in filter(self.likely.__contains__, names):
                return slot
        if (self._takes_turns or self.likely is not None) and self._last is not None:
            start = bisect_right(names, self._last)
        found, least = None, 0.0
        for index in range(start - len(names), start):
            slot = names[index]
            load = self._load(slot)
            if not load:
                found = slot
                break
            if found is None or load < least:
                found, least = slot, load
        if found is not None:
            self._last = found
        return found


class OneLine(Slots):
    """The slots of ScrapyPriorityQueue, which stand in one line: holds are looked at behind it."""

    by_slot = False

    def next(self) -> str | None:
        """Return an empty name for the whole line, None if it is empty."""
        return "" if self._total else None
