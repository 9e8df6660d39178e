"""The pending requests of a crawl, read from Redis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from ..job.codec import Stored, plain_fields
from ..job.dictionaries import Dictionaries
from ..job.pending import By, PendingCount, PendingRequest, Selection
from .call import Holding
from .codec import known_dictionaries
from .layout import ODD_BYTES
from .lifecycle import run_in_crawl
from .scripts import HOLD_SLOTS, PENDING_RECORDS
from .status import SLOTS_AT_ONCE, held_in, parked_in, pending_of, require_crawl, scrapys_priority

if TYPE_CHECKING:
    from .client import RedisClient

AT_ONCE = 500
"""So many elements of a list are read by a call."""


class RedisPendingStore:
    """The pending requests of the crawl beside the filter at `key`, also while it runs.

    While workers are at work, a request that they move meanwhile may count twice or not at all. Its
    methods raise SharedFilterError. Cost: to count by slot or priority, a call for 100 slots, and
    for 500 requests of slots with few; to look into requests, a call for each slot, and for 500.
    """

    def __init__(self, client: RedisClient, key: str) -> None:
        self.client = client
        self.key = key
        self._dictionaries = Dictionaries()

    def count(self, selection: Selection, by: By) -> PendingCount:
        """Return how many are selected."""
        self.learn_dictionaries()
        found = PendingCount()
        for request in self._claimed():
            found.add(request, by, selection, in_flight=True)
        if by == "callback" or selection.reads_requests:
            for request in self._listed(selection):
                found.add(request, by, selection)
        else:
            for priority, slot, count in self._counts():
                if count and selection.includes_slot(slot):
                    found.pending[priority if by == "priority" else slot] += count
        for request in self._apart():
            found.add(request, by, selection)
        return found

    def by_slot(self) -> Counter[str]:
        """Return how many requests each slot has, pending or claimed."""
        requests = (*self._claimed(), *self._apart())
        pending = Counter(request.slot for request in requests)
        for counts in pending_of(self.client, self.key).counts.values():
            pending.update(counts)
        return pending

    def requests(self, selection: Selection, most: int) -> list[PendingRequest]:
        """Return the first selected ones: by priority, then those that were lost with a worker,
        then those that are not due."""
        self.learn_dictionaries()
        found = (
            request
            for source in (self._listed(selection), self._apart())
            for request in source
            if selection.includes(request)
        )
        return [*islice(found, most)]

    def in_flight(self, selection: Selection) -> int:
        """Return how many of those that workers have claimed are selected."""
        self.learn_dictionaries()
        return sum(map(selection.includes, self._claimed()))

    def held(self, selection: Selection) -> dict[str, float]:
        """Return the held slots that are selected, with seconds. Cost: a call for 100 holds."""
        held = held_in(self.client, self.key)
        return {slot: left for slot, left in held.items() if selection.includes_slot(slot)}

    def hold(self, slots: Sequence[str], seconds: float | None) -> int:
        """Hold `slots` by hand for so many seconds, which may be infinite, for all workers; with
        None release them. Return how many are held now, or were. Cost: a call for 100 slots."""
        pause, changed = Holding("", seconds).pause, 0
        for first in range(0, len(slots), SLOTS_AT_ONCE):
            group = slots[first : first + SLOTS_AT_ONCE]
            changed += run_in_crawl(self.client, HOLD_SLOTS, self.key, pause, *group)
        return changed

    def learn_dictionaries(self) -> None:
        """Read the dictionaries that the crawl has now. Cost: three round trips or so."""
        require_crawl(self.client, self.key)
        self._dictionaries = known_dictionaries(self.client, self.key)

    def _counts(self) -> Iterator[tuple[int, str, int]]:
        """Yield priorities, slots, and how many requests are in lists; a slot may come often."""
        for priority, counts in pending_of(self.client, self.key, lobbies=False).counts.items():
            for slot, count in counts.items():
                yield priority, slot, count
        # a script would take four times as long
        for stored in self.priorities():
            for slot, entry in self.lobby(stored):
                own = f"{self.key}:pending:{stored}:{slot}"
                count = 1 if entry else self.client.call("llen", own)
                yield scrapys_priority(stored), slot, count

    def _listed(self, selection: Selection) -> Iterator[PendingRequest]:
        """Yield the requests in the lists of the selected slots."""
        for priority, named in self.lists():
            slot = named.partition("\0")[0]
            if not selection.includes_slot(slot):
                continue
            for entry in self._elements(f"pending:{priority}:{named}"):
                if entry:
                    yield self._request(slot, priority, entry[1:])
        for priority in self.priorities():
            for slot, entry in self.lobby(priority):
                if entry:
                    yield self._request(slot, priority, entry[1:])

    def lobby(self, priority: str) -> Iterator[tuple[str, bytes]]:
        """Yield slot and entry of each element in the lobby of a priority: no entry is the mark of
        the slot's own list."""
        for element in self._elements(f"lobby:{priority}"):
            slot, _, entry = element.partition(b"\0")
            yield slot.decode(errors=ODD_BYTES), entry

    def lists(self) -> Iterator[tuple[str, str]]:
        """Yield priority and name of each list of a slot, in a ring, parked, or behind a mark."""
        yield from parked_in(self.client, self.key)
        for priority in self.priorities():
            for element in self._elements(f"slots:{priority}"):
                named = element.decode(errors=ODD_BYTES)
                yield priority, named
                if named.endswith("\0"):
                    last = f"{self.key}:pending:{priority}:{named}"
                    if self.client.call("lindex", last, -1) == b"":
                        yield priority, named[:-1]
            for element in self._elements(f"lobby:{priority}"):
                if element.endswith(b"\0") and element.count(b"\0") == 1:
                    yield priority, element[:-1].decode(errors=ODD_BYTES)

    def priorities(self) -> Iterator[str]:
        """Yield the priorities that may have pending requests, the first one first."""
        for priority in self.client.call("zrange", f"{self.key}:priorities", 0, -1):
            yield priority.decode()

    def _elements(self, name: str) -> Iterator[bytes]:
        return self.client.pages("lrange", f"{self.key}:{name}", AT_ONCE)

    def _claimed(self) -> Iterator[PendingRequest]:
        for worker in require_crawl(self.client, self.key).workers:
            yield from self._records(f"claims:{worker.name}")

    def _apart(self) -> Iterator[PendingRequest]:
        yield from self._records("quarantined")
        yield from self._records("later")

    def _records(self, name: str) -> Iterator[PendingRequest]:
        for found in self.client.scan(PENDING_RECORDS, self.key, name, None):
            for priority, slot, payload, due, _ in found:
                left = None if due == b"" else due / 1000
                yield self._request(slot.decode(errors=ODD_BYTES), priority, payload, left)

    def fields(self, slot: str, payload: bytes) -> dict[str, Any]:
        """Return the fields of a stored request, none of a damaged one."""
        return plain_fields(Stored(slot, payload), self._dictionaries)

    def _request(
        self, slot: str, priority: str | bytes, payload: bytes, due: float | None = None
    ) -> PendingRequest:
        fields = self.fields(slot, payload)
        return PendingRequest.of(fields, slot, scrapys_priority(priority), due)
