"""The base of the schedulers: passes requests between Scrapy, the dupefilter and the ledger."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.core.scheduler import BaseScheduler
from scrapy.statscollectors import StatsCollector
from scrapy.utils.httpobj import urlparse_cached

from ..errors import JobDirectoryError
from ..scrapy_private import SLOT_KEY
from ..scrapy_private.progress import HELD, TIMES_SENT_AGAIN, EngineProgress
from ..scrapy_private.slots import answer_unsent, slot_keys
from ..startup import close_spider, refuse
from .delays import DEAD, NO_HOLD, NOT_BEFORE, SILENT, TAKEN, Alarm, take_delay
from .failed_request import is_first
from .holds import LocalHolds, probe_seconds, sent_again
from .queue_order import memory_records
from .records import rank_of
from .settings import ANY_SPIDER, DELAY_WAIT, budget_of
from .start_requests import REPEAT_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence, Sized

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter

    from .delays import Hold
    from .ledger import Ledger
    from .protocols import Holds
    from .start_requests import StartRequests

logger = logging.getLogger(__name__)

MOST_PUT_OFF = 10.0
"""Seconds after which a held request in memory is looked at again, which may have been released."""


def require_same_spider(place: str, found: str, crawler: Crawler, remedy: str) -> None:
    """Raise JobDirectoryError if the requests at `place` are those of another spider, `found`: this
    one lacks their callbacks. An empty name fits any spider, and so does BLOOM_ANY_SPIDER."""
    assert crawler.spider is not None
    name = crawler.spider.name
    if ANY_SPIDER.read(crawler.settings) or found in ("", name):
        return
    raise JobDirectoryError(
        f"{place} holds the requests of spider {found!r}, and this is {name!r}: {remedy}. If the"
        " spider was renamed, or spiders share their requests on purpose, set BLOOM_ANY_SPIDER to"
        " True"
    )


class LedgerScheduler(BaseScheduler):
    """Scheduler with requests in the store of a ledger. Without a ledger all requests are in
    memory; with one, those that cannot be serialized."""

    medium = "disk"  # the name of the store in the stats
    overdue_seconds = 0.5
    """The pause before a store is asked again for what is due."""
    _counts_stored = True  # False if the answer of the store tells which requests are counted
    _start_requests: StartRequests  # with a ledger only

    def __init__(self, crawler: Crawler, make_dupefilter: Callable[[], BaseDupeFilter]) -> None:
        """Make the dupefilter behind all that may be wrong here: BLOOM_DELAY_WAIT, BLOOM_BUDGET, or
        a Scrapy that does not tell what is in progress refuse the start."""
        try:
            self._delay_wait = DELAY_WAIT.read(crawler.settings)
            self._budget = budget_of(crawler.settings)  # None without one
            self._engine = EngineProgress(crawler)
        except (JobDirectoryError, ValueError) as error:
            refuse(crawler, error)
        self.crawler, self.stats = crawler, crawler.stats
        inc_value = getattr(type(crawler.stats), "inc_value", None)
        self._has_scrapys_stats = inc_value is StatsCollector.inc_value
        self.spider: Spider | None = None
        self.mqs = memory_records(crawler)
        self.ledger: Ledger | None = None
        self._children: Any = None  # where they are followed
        self._asks_for_rest = False
        self._alarm = Alarm(self._engine.wake)
        self._local_holds = LocalHolds(probe_seconds(crawler))
        self._local_holds.add(self.mqs.slots)
        self._holds_of: Holds = self._local_holds
        self._gate = LocalHolds(probe_seconds(crawler))
        """The hold of all slots in this process, under an empty name."""
        self._slot_of = slot_keys(crawler)
        self._held_times: WeakKeyDictionary[Request, int] = WeakKeyDictionary()
        """By dispatched request: how many holds in a row its slot had then, -1 without a hold."""
        self.probes: dict[str, Request] = {}
        if crawler.settings.getbool("HTTPCACHE_ENABLED"):
            from ..scrapy_private.cache import mend_cache

            # a middleware may make its storage as late as that
            crawler.signals.connect(mend_cache, signals.spider_opened)
        self.df = make_dupefilter()

    @property
    def dqs(self) -> Sized | None:
        """The pending requests in the store, None without one."""
        return None if self.ledger is None else self.ledger.store.pending

    def __len__(self) -> int:
        """Number of pending requests, the delayed ones included."""
        store = self.ledger and self.ledger.store
        return self._in_memory + (len(store.pending) + store.later if store else 0)

    def has_pending_requests(self) -> bool:
        """Return True if any request is pending that is not of a dead host, or the store failed."""
        has_failed = self.ledger is not None and self.ledger.failed  # and so bloom_error will come
        return (has_failed or self._waits) and not self._asks_for_rest

    @property
    def _waits(self) -> bool:
        if not len(self):
            return False
        dead = {slot for slot, hold in self.holds.items() if hold.times >= DEAD}
        if not dead or not self.mqs.has_only(dead):
            return True
        return self.ledger is not None and not self.ledger.store.has_only(dead)

    @property
    def _in_memory(self) -> int:
        """The number of requests that are in memory only."""
        return len(self.mqs) + self.mqs.delayed

    @property
    def holds(self) -> Mapping[str, Hold]:
        """The holds by download slot, with those that are over and were not released."""
        return self._holds_of.holds

    def hold(self, slot: str, seconds: float, times: int) -> None:
        """Hold `slot` (protocols.Holds). What the downloader has not sent of it goes back."""
        self.probes.pop(slot, None)
        with self._guarded():
            self._holds_of.hold(slot, seconds, times)
        self.send_back(slot)

    def send_back(self, slot: str) -> None:
        """Have the engine schedule again what waits in the downloader for a slot that is held."""
        answer_unsent(self.crawler, slot, self.sent_back)

    def release(self, slot: str) -> None:
        """End the hold of `slot`, if there is one."""
        self.probes.pop(slot, None)
        with self._guarded():
            self._holds_of.release(slot)
        self._engine.wake()

    @property
    def is_paused(self) -> bool:
        """True from the first `pause` until the end of it."""
        return bool(self._gate.holds)

    def pause(self, seconds: float | None, likely: Collection[str] = ()) -> None:
        """Pause, and then dispatch one request (protocols.HoldingScheduler)."""
        self.probes.pop("", None)
        if seconds is None:
            self._gate.release("")
        else:
            self._gate.hold("", seconds, SILENT)
        for queue in self._local_holds.queues:
            queue.likely = None if seconds is None else likely
        self._engine.wake()

    def has_dispatched(self, request: Request) -> bool:
        """Return True if `request` came from this scheduler."""
        return request in self._held_times

    def is_probe(self, request: Request, slot: str) -> bool:
        """Return True if `request` was dispatched in this hold of `slot`, to find out its end."""
        hold = self.holds.get(slot, NO_HOLD)
        return 0 < hold.times == self._held_times.get(request) and not hold.lets_pass(request)

    def sent_back(self, request: Request) -> Request | None:
        """Return a copy of `request` if it was dispatched before its slot was held, as it is."""
        if not self.holds or (times := self._held_times.get(request)) is None:
            return None
        hold = self.holds.get(self._slot_of(request), NO_HOLD)
        is_held = hold.until > monotonic() and not hold.lets_pass(request)
        return sent_again(request) if is_held and times != hold.times else None

    def _guarded(self) -> AbstractContextManager[None]:
        return nullcontext() if self.ledger is None else self.ledger.guarded()

    def enqueue_request(self, request: Request) -> bool:
        """Store `request`, durable with the next commit. Return False if it was seen or cannot be
        scheduled. With a ledger never raises."""
        ledger = self.ledger
        if ledger is not None and ledger.stopped:
            # its parent stays unacknowledged, and yields it again
            return False
        try:
            # in line, since each duplicate comes here
            if (
                not request.dont_filter
                # what comes back from a hold keeps its dont_filter, which redirects inherit
                and not (HELD in request.meta and any(self._engine.sent_again_as(request, (HELD,))))
                and self.df.request_seen(request)
            ):
                assert self.spider is not None
                self.df.log(request, self.spider)
                return False
            # not if a middleware sends the same object again
            is_again = TAKEN and request in TAKEN and request not in self._engine.just_downloaded()
            delay = take_delay(request) if is_again or NOT_BEFORE in request.meta else None
            for source in (sources := self._sources_of(request)):  # a redirect may change the host
                host = urlparse_cached(source).hostname
                if request.meta.get(SLOT_KEY) == host != urlparse_cached(request).hostname:
                    del request.meta[SLOT_KEY]
            if ledger is not None and request.meta.get(REPEAT_KEY):
                is_copy = request is not self._start_requests.offered  # such as a child's
                if is_copy and not any(each.meta.get(REPEAT_KEY) for each in sources):
                    del request.meta[REPEAT_KEY]
            if request.meta.get("proxy"):
                self._local_holds.let_pass(self._slot_of(request))
            if self._budget is not None and self._budget.keeps_out(self, request, delay):
                return True
            if ledger is None or not self._push_to_store(ledger, request, sources, delay):
                self._push_to_memory(request, sources, delay)
        except Exception as error:  # foreign code: queues, dupefilter, downloader
            if ledger is None:
                raise
            # a number that overflows here is the request's
            if isinstance(error, ledger.store.failures) and not isinstance(error, OverflowError):
                ledger.stop(error)
            else:
                ledger.cannot_schedule(request, error)
            return False
        return True

    def next_request(self) -> Request | None:
        """Return the next request in Scrapy's order; it stays stored until it is acknowledged."""
        ledger = self.ledger
        if ledger is not None:
            if ledger.stopped:
                return None
            ledger.before_next()
        if self.probes:
            self._end_probes()
        if self._gate.holds and (left := self._gate.next_end) is not None and left > 0:
            self._alarm.set(left)
            return None
        request, medium = self._next()
        if request is None:
            self._await_due()
        elif self._budget is None or self._budget.lets_out(request):
            if ledger is not None:
                ledger.dispatch(request)
            hold = self.holds.get(self._slot_of(request), NO_HOLD) if self.holds else NO_HOLD
            # a hold by hand that is over, of which a worker has not heard yet, is none
            self._held_times[request] = hold.times if hold.times > 0 else -1
            if hold.times > 0 and hold.until > monotonic() and not hold.lets_pass(request):
                self.probes[self._slot_of(request)] = request
            if self._gate.holds and self._gate.admit(""):
                self.probes[""] = request
            self._count("scheduler/dequeued", medium)
            return request
        return None

    def _end_probes(self) -> None:
        """Let another request ask in place of each that the engine is done with: a middleware has
        ignored, replaced or answered it. Cost: O(n) with n probes."""
        ended = [each for each in self.probes.items() if not self._engine.is_in_progress(each[1])]
        for slot, probe in ended:
            del self.probes[slot]
            hold = self.holds.get(slot, NO_HOLD)
            if not slot:
                self._gate.hold("", 0.0, SILENT)
            elif hold.times == self._held_times.get(probe):
                self.hold(slot, 0.0, hold.times)

    def _count(self, name: str, medium: str) -> None:
        """Add 1 to a stat, and to that of `medium`."""
        part = f"{name}/{medium}"
        if self._has_scrapys_stats:
            # what it does, without its searches for attributes, which take longer
            found = StatsCollector.get_stats(self.stats)
            found[name], found[part] = found.get(name, 0) + 1, found.get(part, 0) + 1
        else:
            self.stats.inc_value(name)
            self.stats.inc_value(part)

    def _push_to_store(
        self, ledger: Ledger, request: Request, sources: Sequence[Request], delay: float | None
    ) -> bool:
        """Store `request`; return False if it cannot be serialized."""
        try:
            ledger.store.push(request, sources, delay)
        except ValueError as error:
            self._tell_of_unserializable(request, error)
            return False
        if request is self._start_requests.offered:
            self._start_requests.mark_stored()
        if (sources or request.dont_filter) and self._children:
            self._children.stored(request, sources)
        if self._counts_stored:
            self._count("scheduler/enqueued", self.medium)
        ledger.stored(request, sources)
        return True

    def _sources_of(self, request: Request) -> Sequence[Request]:
        """Return the requests that are sent again as `request`, while that is scheduled."""
        if request.meta.keys().isdisjoint(TIMES_SENT_AGAIN):
            return ()
        return [*self._engine.sent_again_as(request)]

    def _push_to_memory(
        self, request: Request, sources: Sequence[Request], delay: float | None
    ) -> None:
        self._put_in_memory(request, delay)
        if self.ledger is not None:
            if request is self._start_requests.offered:
                self._start_requests.mark_in_memory()
            if self._children:
                self._children.in_memory(request)
            self.ledger.wait_in_memory(request, sources)

    def _put_in_memory(self, request: Request, delay: float | None) -> None:
        start = self.mqs.starts_apart and bool(request.meta.get("is_start_request"))
        due = None if delay is None else time.time() + delay
        self.mqs.push(self._slot_of(request), rank_of(request.priority, start=start), request, due)
        self._count("scheduler/enqueued", "memory")

    def _tell_of_unserializable(self, request: Request, error: ValueError) -> None:
        # always logged, since it costs a repetition after a crash
        if is_first(self.stats, "scheduler/unserializable"):
            logger.warning(
                "Unable to serialize request: %(request)s - reason: %(reason)s - no more"
                " unserializable requests will be logged (stats being collected)",
                {"request": request, "reason": error},
                extra={"spider": self.spider},
            )

    @property
    def _next_due(self) -> float | None:
        """Seconds until the next delayed request is due, or a hold ends but that of a dead slot."""
        due, stored = self.mqs.next_due, None if self.ledger is None else self.ledger.store.next_due
        dues = [None if due is None else due - time.time(), self._local_holds.next_end, stored]
        return min((due for due in dues if due is not None), default=None)

    def _await_due(self) -> None:
        """Have the engine ask again when the next request is due; close the spider if nothing else
        is left, and that is later than BLOOM_DELAY_WAIT."""
        if (due := self._next_due) is None or not self.has_pending_requests():
            return  # a slot may be held for which nothing is left
        if self._delay_wait is not None and due > self._delay_wait and self._is_at_rest:
            when = "when its slot is released" if due == inf else f"in {due:.0f} s"
            what = "The next request is due %s, and BLOOM_DELAY_WAIT is %g s: closing the spider"
            logger.info(what, when, self._delay_wait, extra={"spider": self.spider})
            self._delay_wait = None
            close_spider(self.crawler, "bloom_later")
        else:
            # a store that is asked already wakes the engine when it answers
            self._alarm.set(due if due > 0 else self.overdue_seconds)

    @property
    def _is_at_rest(self) -> bool:
        """True if nothing is left but delayed requests and those on hold."""
        self._asks_for_rest = True
        try:
            return bool(self.crawler.engine.spider_is_idle())
        finally:
            self._asks_for_rest = False

    def _next(self) -> tuple[Request | None, str]:
        """Return the next request and its medium: requests in memory come first."""
        if self._local_holds.holds:
            with self._guarded():
                self._local_holds.take_over()
        if self.mqs.delayed:
            self.mqs.take_due(time.time())
        while (record := self.mqs.next()) is not None:
            slot, rank, request = record
            seconds = self._seconds_held(slot, request) if self.holds else None
            if seconds is None:
                return request, "memory"
            self.mqs.push(slot, rank, request, time.time() + seconds)
        return (None if self.ledger is None else self.ledger.next()), self.medium

    def _seconds_held(self, slot: str, request: Request) -> float | None:
        """Return after how many seconds a request in memory is looked at again, None if it may be
        dispatched: of one line for all slots, or of a slot that other workers hold, too."""
        if (hold := self.holds.get(slot)) is None:
            return None
        waits = (left := hold.until - monotonic()) > 0
        if slot in self._local_holds.holds:
            waits = True  # also if that cannot be stored
            with self._guarded():
                waits = not self._local_holds.admit(slot, request)
        return min(left, MOST_PUT_OFF) if waits else None
