"""Tracks dispatched requests, and which of them may be acknowledged."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from scrapy import Request

    from .failed_request import FailedRequest


@dataclass(eq=False, slots=True)
class Known:
    """What is known of a request that is dispatched or in the memory queue, or both."""

    request: Request
    fingerprints: tuple[bytes, ...] = ()
    """Those that may enter the filter when it is acknowledged."""
    queued: int = 0
    """How often the same object is in the memory queue."""
    arrivals: tuple[int, ...] = ()
    """The numbers of its arrivals there."""
    since: int = 0
    """The number of all arrivals when it was first dispatched."""
    given: list[Known] = field(default_factory=list)
    """The requests in memory that its repetition would yield."""
    givers: int = 0
    """The number of unacknowledged requests whose repetition would yield it."""
    is_over: bool = False
    """True if it waits only for these to be acknowledged."""
    is_sent_again: bool = False
    """True if it became a stored retry or redirect, its only descendant."""
    is_cut_off: bool = False
    """True if it stays in the job, since a fast stop of the engine has broken it off."""
    failed: FailedRequest | None = None
    """The record with which it stays in the job when it is acknowledged."""


class InFlight:
    """The dispatched requests, and those in the memory queue.

    A crash loses the latter, and Scrapy does not show which request has yielded them. So each
    request that was dispatched when one arrived waits for the whole tree of arrivals: repeated
    after a crash, it yields them again. A request in memory that the filter would not drop then is
    acknowledged with the last of those that may yield it.

    Each request waits for a contiguous range of arrivals, those between its start and its end, and
    an arrival for later ones. Each is queued on the one in the middle of those that are still open,
    and, when that is over, on the one in the middle of the rest: a few times, in whichever order
    they end.
    """

    def __init__(self) -> None:
        self._known: dict[Request, Known] = {}
        self._running: dict[Request, Known] = {}
        self._arrived = 0
        self._open: list[int] = []
        """The arrivals that are not over, in order: an arrival is over when the engine is done with
        the request, and later arrivals until then are over."""
        self._waiting: dict[int, list[tuple[int, int, Known | int]]] = {}
        """By open arrival: the ranges of those that wait for it, and the request or arrival."""

    def __iter__(self) -> Iterator[Known]:
        """Iterate over a copy of the dispatched requests that are not finished."""
        return iter([*self._running.values()])

    def __contains__(self, request: Request) -> bool:
        return request in self._running

    def __len__(self) -> int:
        return len(self._running)

    def get(self, request: Request) -> Known | None:
        """Return what is known of a dispatched request, None for any other."""
        return self._running.get(request)

    def keep(self, request: Request, fingerprints: Iterable[bytes], *, comes_again: bool) -> None:
        """Record that `request` is in the memory queue. If it `comes_again`, no filter drops it
        when the request that has yielded it is repeated."""
        is_new = request not in self._known
        known = self._know(request)
        if comes_again and is_new:
            for running in self._running.values():
                running.given.append(known)
            known.givers = len(self._running)
        known.queued += 1
        known.fingerprints += tuple(fingerprints)
        known.arrivals += (self._arrived,)
        self._open.append(self._arrived)
        self._arrived += 1

    def start(self, request: Request) -> None:
        """Record that `request` is dispatched, from the store or the memory queue."""
        known = self._know(request)
        known.queued = max(known.queued - 1, 0)
        if request not in self._running:
            known.since = self._arrived
            self._running[request] = known

    def finish(self, request: Request) -> list[Known]:
        """Record that the engine is done with `request`; return those that may be acknowledged now.
        One that is sent again waits for no arrivals. Amortized cost: O(log n) steps with n open
        arrivals."""
        known = self._running.get(request)
        if known is None:
            return []
        is_alone, known.is_sent_again = known.is_sent_again, False
        if known.queued:
            return []
        del self._running[request], self._known[request]
        over: list[Known | int] = []
        if is_alone:
            over.append(known)
        else:
            self._wait(known.since, self._arrived, known, over)
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
            elif waiting.givers:
                waiting.is_over = True
            else:
                finished.append(waiting)
                for given in waiting.given:
                    given.givers -= 1
                    if given.is_over and not given.givers:
                        over.append(given)
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
