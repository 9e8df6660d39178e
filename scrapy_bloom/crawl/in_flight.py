"""Tracks dispatched requests, and which of them may be acknowledged."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from scrapy import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .failed_request import FailedRequest


@dataclass(eq=False, slots=True)
class Known:
    """What is known of a request that is dispatched or in the memory queue, or both."""

    request: Request
    fingerprints: tuple[bytes, ...] = ()
    """Those that may enter the filter when it is acknowledged."""
    queued: int = 0
    """How often the same object is to be dispatched again: from the memory queue, or by the next
    start, if a fast stop of the engine has broken it off."""
    arrivals: tuple[int, ...] = ()
    """The numbers of its arrivals there."""
    since: int = 0
    """The number of all arrivals when it was first dispatched."""
    given: list[Known] = field(default_factory=list)
    """The requests in memory that its repetition would yield."""
    awaited: int = 1
    """How many are to end before it is acknowledged: itself, with the arrivals that it waits for,
    and unacknowledged requests whose repetition would yield it."""
    failed: FailedRequest | None = None
    """The record with which it stays in the job when it is acknowledged."""
    stands_in: bool = False
    """True if it is no request of the crawl, and over when it is the oldest that is dispatched."""


class InFlight:
    """The dispatched requests, and those in the memory queue.

    A crash loses the latter, and Scrapy does not show which request has yielded them. So each
    request that was dispatched when one arrived waits for the whole tree of arrivals: repeated
    after a crash, it yields them again. A request in memory that the filter would not drop then is
    acknowledged with its page, or else the last of those that may yield it.

    Each request waits for a contiguous range of arrivals, those between its start and its end, and
    an arrival for later ones. Each is queued on the one in the middle of those that are still open,
    and, when that is over, on the one in the middle of the rest: a few times, in whichever order
    they end.
    """

    def __init__(self) -> None:
        self.running: dict[Request, Known] = {}
        """The dispatched requests that are not finished, oldest first."""
        self.page_of: WeakKeyDictionary[Request, Request] = WeakKeyDictionary()
        """The page that has yielded an unfiltered request, or is sent again as one, where that is
        known."""
        self._known: dict[Request, Known] = {}
        self._arrived = 0
        self._open: list[int] = []
        """The arrivals that are not over, in order: an arrival is over when the engine is done with
        the request, and later arrivals until then are over."""
        self._waiting: dict[int, list[tuple[int, int, Known | int]]] = {}
        """By open arrival: the ranges of those that wait for it, and the request or arrival."""

    def __len__(self) -> int:
        return sum(not known.stands_in for known in self.running.values())

    def keep(self, request: Request, fingerprints: Iterable[bytes], *, comes_again: bool) -> None:
        """Record that `request` is in the memory queue. If it `comes_again`, no filter drops it
        when the request that has yielded it is repeated: so both are acknowledged at once."""
        is_new, page = request not in self._known, self.page_of.pop(request, None)
        known = self._know(request)
        if comes_again and is_new:
            givers = [each for each in self.running.values() if not each.stands_in]
            if page in self.running:
                givers = [self.running[page]]
            for giver in givers:
                giver.given.append(known)
            known.awaited += len(givers)
        known.queued += 1
        known.fingerprints += tuple(fingerprints)
        known.arrivals += (self._arrived,)
        self._open.append(self._arrived)
        self._arrived += 1

    def start(self, request: Request) -> None:
        """Record that `request` is dispatched, from the store or the memory queue."""
        known = self._know(request)
        known.queued = max(known.queued - 1, 0)
        if request not in self.running:
            known.since = self._arrived
            self.running[request] = known

    def stand_in(self) -> Request:
        """Return a stand-in for all dispatched requests: a request in memory that any of them may
        have yielded. Cost: a step for each, if one was dispatched since the last call."""
        newest = next(reversed(self.running.values()), None)
        if newest is not None and newest.stands_in:
            return newest.request
        request = Request("data:,")
        self.keep(request, (), comes_again=True)
        self.start(request)
        self.running[request].stands_in = True
        return request

    def finish(self, request: Request, *, waits: bool = True) -> list[Known]:
        """Record that the engine is done with `request`, which `waits` for arrivals unless it is
        sent again; return those that may be acknowledged now. Amortized cost: O(log n) steps with n
        open arrivals."""
        known = self.running.get(request)
        if known is None or known.queued:
            return []
        del self.running[request], self._known[request]
        if known.stands_in:
            known.since = self._arrived  # it yields nothing
        over: list[Known | int] = []
        self._wait(known.since, self._arrived if waits else known.since, known, over)
        for arrival in known.arrivals:
            # one while it was dispatched does not wait for itself
            self._wait(max(known.since, arrival + 1), self._arrived, arrival, over)
        finished = []
        while over:
            waiting = over.pop()
            if isinstance(waiting, int):
                del self._open[bisect_left(self._open, waiting)]
                for each in self._waiting.pop(waiting, ()):
                    self._wait(*each, over)
            else:
                waiting.awaited -= 1
                if not waiting.awaited:
                    finished.append(waiting)
                    over += waiting.given
        return finished

    def _know(self, request: Request) -> Known:
        return self._known.setdefault(request, Known(request))

    def _wait(self, start: int, end: int, waiting: Known | int, over: list[Known | int]) -> None:
        """Queue `waiting` until all arrivals of this range are over; without any it is `over`."""
        first, last = bisect_left(self._open, start), bisect_left(self._open, end)
        if first == last:
            over.append(waiting)
        else:
            entry = start, end, waiting
            self._waiting.setdefault(self._open[(first + last) // 2], []).append(entry)
