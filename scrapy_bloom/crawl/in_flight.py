"""Tracks dispatched requests, and which of them may be acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from scrapy import Request


class Known:
    """A request that is dispatched or in the memory queue, or both, with the `fingerprints` that
    may enter the filter when it is acknowledged; `since` is the number of arrivals when it was
    first dispatched, `queued` how often the same object is in the memory queue."""

    __slots__ = ("arrivals", "fingerprints", "queued", "request", "since")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.fingerprints: tuple[bytes, ...] = ()
        self.since = self.queued = 0
        self.arrivals: list[_Arrival] = []


class InFlight:
    """The dispatched requests, and those in the memory queue.

    A crash loses the latter, and Scrapy does not show which request has yielded them. So each
    request that was dispatched when one arrived waits for the whole tree of arrivals: repeated
    after a crash, it yields them again. A request in memory that the filter would not drop then is
    acknowledged with the last of those that may yield it.

    Each request waits for a contiguous range of arrivals, those between its start and its end, and
    an arrival for later ones. Each is queued on the last open arrival of its range only, and moves
    to the one before when that is over.
    """

    def __init__(self) -> None:
        self._known: dict[int, Known] = {}
        self._running: dict[int, Known] = {}
        self._arrived = 0
        self._last: _Arrival | None = None
        """The last open arrival, None without any."""
        self._serials = count()
        self._given: dict[Known, list[Known]] = {}
        """By unacknowledged request: the requests in memory that its repetition would yield."""
        self._givers: Counter[Known] = Counter()
        """By request in memory: the number of unacknowledged requests that would yield it."""
        self._over: set[Known] = set()
        """The requests in memory that wait only for these to be acknowledged."""

    def __iter__(self) -> Iterator[Request]:
        """Iterate over a copy of the dispatched requests that are not finished."""
        return iter([known.request for known in self._running.values()])

    def __contains__(self, request: Request) -> bool:
        return id(request) in self._running

    def __len__(self) -> int:
        return len(self._running)

    def keep(self, request: Request, fingerprints: Iterable[bytes], *, comes_again: bool) -> None:
        """Record that `request` is in the memory queue. If it `comes_again`, no filter drops it
        when the request that has yielded it is repeated."""
        is_new = id(request) not in self._known
        known = self._know(request)
        if comes_again and is_new:
            for running in self._running.values():
                self._given.setdefault(running, []).append(known)
            self._givers[known] = len(self._running)
        known.queued += 1
        known.fingerprints += tuple(fingerprints)
        arrival = _Arrival(self._arrived, self._last)
        if self._last is not None:
            self._last.next = arrival
        self._last = arrival
        self._arrived += 1
        known.arrivals.append(arrival)

    def start(self, request: Request) -> None:
        """Record that `request` is dispatched, from the store or the memory queue."""
        known = self._know(request)
        known.queued = max(known.queued - 1, 0)
        if id(request) not in self._running:
            known.since = self._arrived
            self._running[id(request)] = known

    def finish(self, request: Request, *, alone: bool = False) -> list[Known]:
        """Record that the engine is done with `request`; return those that may be acknowledged now.
        With `alone` it waits for no arrivals. Amortized cost: O(log² n) with n waiting requests."""
        known = self._running.get(id(request))
        if known is None or known.queued:
            return []
        del self._running[id(request)], self._known[id(request)]
        over: list[_Waiting] = []
        # a request that arrived again while it was dispatched must not wait for itself
        if alone:
            over.append(known)
        else:
            self._wait(known.since, known, over)
        for arrival in known.arrivals:
            self._wait(max(known.since, arrival.number + 1), arrival, over)
        known.arrivals.clear()  # each knows the one before
        finished = []
        while over:
            waiting = over.pop()
            if isinstance(waiting, _Arrival):
                over += self._remove(waiting)
                continue
            if self._givers[waiting]:
                self._over.add(waiting)
            else:
                finished.append(waiting)
                over += self._released(waiting)
        return finished

    def _released(self, giver: Known) -> Iterator[Known]:
        """Yield the requests that have waited for the acknowledgement of `giver` only."""
        del self._givers[giver]
        for given in self._given.pop(giver, ()):
            self._givers[given] -= 1
            if not self._givers[given] and given in self._over:
                self._over.remove(given)
                yield given

    def _know(self, request: Request) -> Known:
        return self._known.setdefault(id(request), Known(request))

    def _wait(self, since: int, waiting: _Waiting, over: list[_Waiting]) -> None:
        """Queue `waiting` until all arrivals from `since` on are over; without any it is `over`."""
        if self._last is None or self._last.number < since:
            over.append(waiting)
        else:
            heappush(self._last.waiting, (-since, next(self._serials), waiting))

    def _remove(self, arrival: _Arrival) -> list[_Waiting]:
        """Remove an arrival that is over from the open ones. Return those that waited for it as the
        last; queue the others on the arrival before."""
        previous, next_ = arrival.previous, arrival.next
        if next_ is None:
            self._last = previous
        else:
            next_.previous = previous
        if previous is None:
            return [waiting for *_, waiting in arrival.waiting]
        previous.next = next_
        over = []
        while arrival.waiting and -arrival.waiting[0][0] > previous.number:
            over.append(heappop(arrival.waiting)[2])
        fewer, previous.waiting = sorted((arrival.waiting, previous.waiting), key=len)
        for entry in fewer:
            heappush(previous.waiting, entry)
        return over


class _Arrival:
    """The arrival of a request in the memory queue; `previous` is the open one before. It is open
    until the engine is done with the request, and later arrivals until then are over."""

    __slots__ = ("next", "number", "previous", "waiting")

    def __init__(self, number: int, previous: _Arrival | None) -> None:
        self.number = number
        self.previous = previous
        self.next: _Arrival | None = None
        self.waiting: list[tuple[int, int, _Waiting]] = []
        """A heap of those for which this arrival is the last: minus the number of the first arrival
        that each waits for, a serial number against ties, and the waiting object."""


_Waiting: TypeAlias = "Known | _Arrival"
