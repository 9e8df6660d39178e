"""Which requests the engine works on, and which of them may be acknowledged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from scrapy import Request


@dataclass(slots=True, eq=False)
class Finished:
    """A request that need not be repeated any more, whatever happens: the filter may
    hold its fingerprints."""

    request: Request
    fingerprints: tuple[bytes, ...] = ()


class InFlight:
    """The requests that the engine has got, and those that live in memory only.

    A crash takes the latter with it, and nobody says which request they came from.
    So whatever was in progress when one arrived waits for it, and is acknowledged no
    sooner than the whole tree of them is finished: fetched again, it yields them again.
    One that the filter does not hold back then is acknowledged with the last of those that
    may yield it, no sooner.

    Arrivals are numbered. What a request waits for is a range of them, from those that
    were there when it started to those that are there when it is finished, and what an
    arrival waits for came after it. So each waits at the last open arrival of its
    range, and moves to the one before when that is over: one place for each that
    waits, however much it waits for.
    """

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._running: dict[int, _Known] = {}
        self._arrived = 0
        self._last: _Arrival | None = None
        """The last open arrival."""
        self._serials = count()
        self._given: dict[Finished, list[Finished]] = {}
        """The requests in memory that come again with each request that is not acknowledged …"""
        self._givers: Counter[Finished] = Counter()
        """… with how many of them …"""
        self._over: set[Finished] = set()
        """… and the requests that wait only for these to be acknowledged."""

    def __iter__(self) -> Iterator[Request]:
        """The requests that the engine has got and that were not finished yet."""
        return iter([known.finished.request for known in self._running.values()])

    def __contains__(self, request: Request) -> bool:
        return id(request) in self._running

    def __len__(self) -> int:
        return len(self._running)

    def keep(
        self, request: Request, fingerprints: Iterable[bytes], *, comes_again: bool = False
    ) -> None:
        """Note that `request` waits in the memory queue. It `comes_again` with whatever has
        yielded it, though the filter may hold its fingerprint."""
        is_new = id(request) not in self._known
        known = self._know(request)
        if comes_again and is_new:
            for running in self._running.values():
                self._given.setdefault(running.finished, []).append(known.finished)
            self._givers[known.finished] = len(self._running)
        known.queued += 1
        known.finished.fingerprints += tuple(fingerprints)
        arrival = _Arrival(self._arrived, self._last)
        if self._last is not None:
            self._last.next = arrival
        self._last = arrival
        self._arrived += 1
        known.arrivals.append(arrival)

    def start(self, request: Request) -> None:
        """Note that the engine gets `request`, stored or from the memory queue."""
        known = self._know(request)
        known.queued = max(known.queued - 1, 0)
        if id(request) not in self._running:
            known.since = self._arrived
            self._running[id(request)] = known

    def finish(self, request: Request, *, alone: bool = False) -> list[Finished]:
        """Note that the engine is done with `request`; return what may be acknowledged
        now, itself and others that waited for it. With `alone` it waits for nothing that
        arrived: what came of it is known.

        Amortized cost: O(log² n) where n requests wait, O(1) where none does.
        """
        known = self._running.get(id(request))
        if known is None or known.queued:
            return []
        del self._running[id(request)], self._known[id(request)]
        over: list[_Waiting] = []
        # a request that came again while it was in progress must not wait for itself
        if alone:
            over.append(known.finished)
        else:
            self._wait(known.since, known.finished, over)
        for arrival in known.arrivals:
            self._wait(max(known.since, arrival.number + 1), arrival, over)
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

    def _released(self, giver: Finished) -> Iterator[Finished]:
        """Yield what has waited for nothing but that `giver` is acknowledged."""
        del self._givers[giver]
        for given in self._given.pop(giver, ()):
            self._givers[given] -= 1
            if not self._givers[given] and given in self._over:
                self._over.remove(given)
                yield given

    def _know(self, request: Request) -> _Known:
        return self._known.setdefault(id(request), _Known(Finished(request)))

    def _wait(self, since: int, waiting: _Waiting, over: list[_Waiting]) -> None:
        """Let something wait for all open arrivals from number `since` on; without any
        it is `over` at once."""
        if self._last is None or self._last.number < since:
            over.append(waiting)
        else:
            heappush(self._last.waiting, (-since, next(self._serials), waiting))

    def _remove(self, arrival: _Arrival) -> list[_Waiting]:
        """Take an arrival that is over out of the open ones; return what waited for it
        as the last. The rest waits at the one before from now on."""
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


@dataclass(slots=True)
class _Known:
    """A request that is in progress or in the memory queue, or both."""

    finished: Finished
    """What it will be."""
    since: int = 0
    """How many had arrived when the engine got it, for the first time."""
    queued: int = 0
    """How often it waits in the memory queue, where it is no copy."""
    arrivals: list[_Arrival] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class _Arrival:
    """A request that came to the memory queue. It is open until the engine is done with
    the request and all that arrived in the meantime is over."""

    number: int
    previous: _Arrival | None
    """The open one before."""
    next: _Arrival | None = None
    waiting: list[tuple[int, int, _Waiting]] = field(default_factory=list)
    """A heap of what waits for this one as the last: minus the number of the first that
    it waits for, a serial number that decides between equals, and what waits."""


_Waiting: TypeAlias = "Finished | _Arrival"
