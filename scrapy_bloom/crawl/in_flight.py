"""Tracks dispatched requests, and which of them may be acknowledged."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from scrapy import Request

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .failed_request import FailedRequest


@dataclass(eq=False, slots=True)
class Wait:
    """What ends as soon as `left` others have ended, and is one of these for all `behind` it."""

    behind: list[Wait] = field(default_factory=list)
    left: int = 1


@dataclass(eq=False, slots=True, kw_only=True)
class Known(Wait):
    """What is known of a request that is dispatched or in the memory queue, or both. It ends when
    it is acknowledged: after its time with the engine, and after the requests whose repetition
    would yield it. Those that its own would yield are behind it."""

    request: Request
    fingerprints: tuple[bytes, ...] = ()
    """Those that may enter the filter when it is acknowledged."""
    queued: int = 0
    """How often the same object is to be dispatched again: from the memory queue, or by the next
    start, if a fast stop of the engine has broken it off."""
    at_work: Wait = field(default_factory=Wait)
    """Its time with the engine, for itself and for those that have come into memory meanwhile."""
    stays: list[Wait] = field(default_factory=list)
    """This one, and its own stays in memory, each for itself and for those that come later."""
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

    Cost of a request that comes into memory: a step for each that is dispatched, or one if its page
    is known. What is over is forgotten.
    """

    def __init__(self) -> None:
        self.running: dict[Request, Known] = {}
        """The dispatched requests that are not finished, oldest first."""
        self.page_of: WeakKeyDictionary[Request, Request] = WeakKeyDictionary()
        """The page that has yielded an unfiltered request, where that is known."""
        self._known: dict[Request, Known] = {}

    def __len__(self) -> int:
        return sum(not known.stands_in for known in self.running.values())

    def keep(self, request: Request, fingerprints: Iterable[bytes], *, comes_again: bool) -> None:
        """Record that `request` is in the memory queue. If it `comes_again`, no filter drops it
        when the request that has yielded it is repeated: so both are acknowledged at once."""
        is_new = request not in self._known
        known = self._know(request)
        givers = [each for each in self.running.values() if not each.stands_in]
        if (page := self.page_of.pop(request, None)) in self.running:
            givers = [self.running[page]]
        if comes_again and is_new:
            for giver in givers:
                giver.behind.append(known)
            known.left += len(givers)
        behind = [stay for giver in givers for stay in giver.stays]
        for stay in behind:
            stay.left += 1
        known.stays.append(Wait(behind))
        known.queued += 1
        known.fingerprints += tuple(fingerprints)

    def start(self, request: Request) -> None:
        """Record that `request` is dispatched, from the store or the memory queue."""
        known = self._know(request)
        known.queued = max(known.queued - 1, 0)
        if request not in self.running:
            known.at_work.behind.append(known)
            known.stays.append(known.at_work)
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
        """Record that the engine is done with `request`, which `waits` for those in memory unless
        it is sent again; return those that may be acknowledged now."""
        known = self.running.get(request)
        if known is None or known.queued:
            return []
        del self.running[request], self._known[request]
        if not waits:
            known.at_work.left = 1
        ended, finished = known.stays, []
        while ended:
            wait = ended.pop()
            wait.left -= 1
            if not wait.left:
                ended += wait.behind
                if isinstance(wait, Known):
                    finished.append(wait)
        return finished

    def _know(self, request: Request) -> Known:
        return self._known.setdefault(request, Known(request=request))
