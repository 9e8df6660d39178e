"""Holds of download slots: a host that asks for a rest is not asked until it is over."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from email.utils import mktime_tz, parsedate_tz
from heapq import heappop, heappush
from math import inf
from time import monotonic
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import signals
from scrapy.exceptions import NotConfigured

from ..scrapy_private.progress import HELD, REFUSED, scheduler_of
from ..scrapy_private.slots import backs_off, slot_keys
from ..startup import fetches_one_page, is_component, refuse
from .delays import DEAD, NO_HOLD, SILENT, Hold
from .failed_request import count_of
from .hosts import Hosts, pause_after
from .settings import HOLD, HOLD_MAX, HOLD_TIMES

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

    from .protocols import HoldingScheduler
    from .slots import Slots

logger = logging.getLogger(__name__)

RECOVERY = 16
"""After a hold a slot is at full speed when so many answers have come after that of the probe."""
DOUBTS = 3
"""So many more refusals than answers hold a slot."""
REFUSALS = frozenset({429, 503})
UNCACHEABLE = "_dont_cache"
"""Scrapy's own meta key, which HttpCacheMiddleware takes out of a request as it obeys it."""
_SECONDS = re.compile(rb"\d+(\.\d*)?")


class HoldMiddleware:
    """Downloader middleware that holds the download slot of a host that refuses requests with
    status 429 or 503, if in RETRY_HTTP_CODES, or that does not answer, for all workers of a crawl.
    The add-on enables it. A request that the scheduler has handed out goes back to it, and uses up
    no retry."""

    order = 560
    """Its place in DOWNLOADER_MIDDLEWARES: it gets responses before RetryMiddleware."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler, settings = crawler, crawler.settings
        self._log = logging.LoggerAdapter(logger, {"spider": crawler.spider})
        self._longest, self._times = HOLD_MAX.read(settings), HOLD_TIMES.read(settings)
        self._found: HoldingScheduler | None = None
        self._refusals = REFUSALS & {int(code) for code in settings.getlist("RETRY_HTTP_CODES")}
        self._has_cache = settings.getbool("HTTPCACHE_ENABLED")
        self._hosts = Hosts(crawler, self._log)
        self._rows: Counter[str] = Counter()  # of holds that this process has begun, by slot
        self._doubts: Counter[str] = Counter()
        """By slot: one more for each refusal, one less for any other answer, many after a hold."""
        self._noted: WeakKeyDictionary[Request, bool] = WeakKeyDictionary()
        """Refused requests that are in middlewares nearer to the downloader: whether each goes
        back."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the middleware. Raises NotConfigured with BLOOM_HOLD = False, in a command for one
        page, and under a scheduler that holds nothing; refuses the start for a bad setting."""
        try:
            is_on, self = HOLD.read(crawler.settings), cls(crawler)
        except ValueError as error:
            refuse(crawler, error)
        if not is_on or fetches_one_page(crawler):
            raise NotConfigured
        if not is_component(setting := crawler.settings["SCHEDULER"], "LedgerScheduler"):
            names = "DurableScheduler or RedisDurableScheduler"
            raise NotConfigured(f"SCHEDULER is {setting!r}, and holds need {names}")
        crawler.signals.connect(self._response_downloaded, signals.response_downloaded)
        for signal in (signals.headers_received, signals.bytes_received):
            crawler.signals.connect(self._hear, signal)
        return self

    def process_request(self, request: Request) -> Request | None:
        """Send `request` back to the scheduler if its slot is held since it was handed out."""
        scheduler = self._scheduler
        return None if scheduler is None else scheduler.sent_back(request)

    def process_response(self, request: Request, response: Response) -> Request | Response:
        """Return a copy of a `request` that was refused, unless it uses a try, or the response."""
        goes_back = self._noted.pop(request, None)
        scheduler, is_cached = self._scheduler, "cached" in response.flags
        if scheduler is not None and not is_cached and self._is_refusal(request, response):
            if goes_back is None:  # it is the answer of another middleware
                goes_back = self._note_refusal(scheduler, request, response)
            if goes_back and scheduler.has_dispatched(request):
                self._crawler.stats.inc_value("scheduler/held")
                return sent_again(request)
        return response

    def process_exception(self, request: Request, exception: Exception) -> Request | None:
        """Return a copy of a `request` that a host has not answered, unless it uses a try."""
        scheduler = self._scheduler
        if scheduler is None:
            return None
        goes_back = self._hosts.fails(scheduler, request, self._slot_of(request), exception)
        if not goes_back or request.meta.get("dont_retry") or not scheduler.has_dispatched(request):
            return None
        self._crawler.stats.inc_value("scheduler/held")
        return sent_again(request)

    @property
    def _scheduler(self) -> HoldingScheduler | None:
        """The scheduler of the crawler, None before it is built, and for one that holds nothing."""
        if self._found is None:
            found: Any = scheduler_of(self._crawler)
            if hasattr(found, "sent_back"):
                self._found, self._slot_of = found, slot_keys(self._crawler)
        return self._found

    def _hear(self, request: Request, latency: float = inf) -> None:
        """Note that a host answers, so many seconds after it was asked."""
        if (scheduler := self._scheduler) is not None and not request.meta.get("proxy"):
            self._hosts.hears(scheduler, self._slot_of(request), latency)

    def _response_downloaded(self, response: Response, request: Request) -> None:
        """Note a refusal before the next request is sent, and keep it out of the HTTP cache; or end
        the hold of a slot that answers, also with a redirect."""
        scheduler = self._scheduler
        if scheduler is None:
            return
        self._hear(request, request.meta.get("download_latency", 0.0))
        if self._is_refusal(request, response):
            meta = request.meta
            self._noted[request] = self._note_refusal(scheduler, request, response)
            if self._has_cache and "cached_response" not in meta and not meta.get("dont_cache"):
                # it is not revalidated: a retry would be answered with the refusal
                meta[UNCACHEABLE] = True
        else:
            request.meta.pop(REFUSED, None)
            if scheduler.holds or self._doubts:
                self._note_answer(scheduler, request, self._slot_of(request))

    def _note_answer(self, scheduler: HoldingScheduler, request: Request, slot: str) -> None:
        times = scheduler.holds.get(slot, NO_HOLD).times
        if scheduler.is_probe(request, slot):
            self._log.debug("%(slot)s answers again", {"slot": slot})
            scheduler.release(slot)
            self._doubts[slot] = 0 if times > self._times else self._recovery(slot)
        elif not times and self._doubts[slot] > 0:
            self._doubts[slot] -= 1

    def _recovery(self, slot: str) -> int:
        """Return the doubts after a hold."""
        # twice as many after each row, since a host with a limit answers, too
        return DOUBTS - 2 + (RECOVERY << min(max(0, self._rows[slot] - 1), 5))

    def _is_refusal(self, request: Request, response: Response) -> bool:
        status = response.status
        return status in self._refusals and not backs_off(self._crawler, request, status)

    def _note_refusal(
        self, scheduler: HoldingScheduler, request: Request, response: Response
    ) -> bool:
        """Hold the slot, or count the refusal. Return True if `request` goes back without a try.
        All rules of refusals are here."""
        slot, asked, meta = self._slot_of(request), retry_after(response), request.meta
        hold, is_probe = scheduler.holds.get(slot, NO_HOLD), scheduler.is_probe(request, slot)
        # it has used a try, or an answer has ended a hold since it was refused
        is_suspect = bool(meta.get("retry_times")) or (REFUSED in meta and not hold.times)
        returns = is_probe + count_of(meta.get(REFUSED))
        uses_try = returns > self._times
        if HELD in meta and REFUSED in meta and not (meta.get("retry_times") or self._rows[slot]):
            # another process has held the slot for its refusal
            self._doubts[slot] = max(self._doubts[slot], self._recovery(slot))
        if not is_probe and (hold.times > 0 or hold.until > monotonic()):  # it was sent before
            self._doubts[slot] = max(self._doubts[slot], self._recovery(slot))
            if asked is not None:
                scheduler.hold(slot, min(self._longest, asked), hold.times)
        elif asked is not None:
            self._hold_refusing(scheduler, slot, asked, f"{response.status} with Retry-After")
        elif hold.times >= self._times:
            uses_try = True
            self._give_up(scheduler, slot, hold)
        elif not hold.times and self._doubts[slot] + 1 < DOUBTS + is_suspect:
            uses_try = True
            self._doubts[slot] += not is_suspect
        else:
            uses_try = uses_try or (is_probe and is_suspect)
            self._hold_refusing(scheduler, slot, pause_after(hold.times), str(response.status))
        if self._is_for_the_spider(request, response):
            return False
        meta[REFUSED] = returns
        return not uses_try

    def _hold_refusing(
        self, scheduler: HoldingScheduler, slot: str, seconds: float, what: str
    ) -> None:
        """Begin the next hold of a slot whose host refuses."""
        times, seconds = scheduler.holds.get(slot, NO_HOLD).times + 1, min(self._longest, seconds)
        scheduler.hold(slot, seconds, times)
        self._rows[slot] += times == 1
        self._crawler.stats.inc_value("scheduler/holds")
        told = "%s has answered %s: it is not asked for %.3g s (hold %d in a row)"
        self._log.info(told, slot, what, seconds, times)

    def _give_up(self, scheduler: HoldingScheduler, slot: str, hold: Hold) -> None:
        """Let all requests of `slot` go, until it answers."""
        if hold.times == self._times:
            self._log.warning(
                "%(slot)s still refuses requests after %(times)d holds in a row (BLOOM_HOLD_TIMES):"
                " they are retried, and fail, as without holds",
                {"slot": slot, "times": hold.times},
            )
        if hold.times == self._times or hold.until > monotonic():
            scheduler.hold(slot, 0.0, hold.times + 1)

    def _is_for_the_spider(self, request: Request, response: Response) -> bool:
        """Return True if no middleware may send `request` again, or it wants such responses."""
        meta = request.meta
        return bool(
            meta.get("dont_retry")
            or meta.get("handle_httpstatus_all")
            or response.status in meta.get("handle_httpstatus_list", ())
            or response.status in getattr(self._crawler.spider, "handle_httpstatus_list", ())
        )


class LocalHolds:
    """The holds of one process, applied to its `queues`; `keep` is called with the slot after each
    change. Costs: a change O(log n) with n holds, and O(1) a queue."""

    def __init__(self, longest_probe: float) -> None:
        self.holds: dict[str, Hold] = {}
        """Those that are over stay here, until an answer of their slot releases them."""
        self.queues: list[Slots] = []
        self.keep: Callable[[str], None] = lambda slot: None
        self._longest_probe = longest_probe
        self._proxied: set[str] = set()
        """The slots with requests that know their proxy: these pass the hold of a silent host."""
        self._ends: tuple[list[tuple[float, str]], ...] = [], []
        """Heaps, the second of dead slots, with ends that have changed since."""

    @property
    def next_end(self) -> float | None:
        """Seconds until the next hold but of dead slots ends, `inf` until a release; or None."""
        ends = self._ends[0]
        while ends and self.holds.get(ends[0][1], NO_HOLD).until != ends[0][0]:
            heappop(ends)
        return ends[0][0] - monotonic() if ends else None

    def hold(self, slot: str, seconds: float, times: int, *, pause: float | None = None) -> None:
        """Hold `slot` as a RequestStore does; for the rest of a hold of `pause` seconds."""
        until = monotonic() + seconds
        hold = self.holds.get(slot, NO_HOLD).met(until, times)
        if hold.until == until:
            hold = hold._replace(pause=max(0.0, seconds) if pause is None else pause)
        self._set(slot, hold)

    def release(self, slot: str) -> None:
        """Release `slot` as a RequestStore does."""
        if self.holds.pop(slot, None) is not None:
            for queue in self.queues:
                queue.release(slot)
            self.keep(slot)

    def let_pass(self, slot: str) -> None:
        """Look at each request of `slot`: some know their proxy."""
        if slot not in self._proxied:
            self._proxied.add(slot)
            if (hold := self.holds.get(slot, NO_HOLD)).times >= SILENT:
                self._set(slot, hold)

    def asks_last(self, slot: str) -> bool:
        """Return True if the last in line is to end the hold of `slot`, by turns with the first."""
        hold = self.holds.get(slot, NO_HOLD)
        may_ask = self._longest_probe > 0 and hold.pause > 0
        return may_ask and hold.times % 2 == 1 and hold.until <= monotonic()

    def add(self, queue: Slots) -> None:
        """Apply the holds to `queue`."""
        queue.asks_last = self.asks_last
        self.queues.append(queue)

    def take_over(self) -> None:
        """Let the requests of slots be popped whose holds are over."""
        for ends in self._ends:
            while ends and ends[0][0] <= monotonic():
                until, slot = heappop(ends)
                if (hold := self.holds.get(slot, NO_HOLD)).until == until:
                    self._set(slot, hold)

    def admit(self, slot: str, request: Request | None = None) -> bool:
        """Return True if a request of `slot` may be dispatched. After a hold that is one, during
        which it goes on; one by hand ends."""
        hold = self.holds.get(slot)
        if hold is None or (request and hold.lets_pass(request)):
            return True
        now = monotonic()
        if hold.until > now:
            return False
        # a host that does not answer takes all its time for that
        is_silent = hold.times >= SILENT
        probe = 2 * self._longest_probe if is_silent else min(hold.pause, self._longest_probe)
        if not hold.times:
            self.release(slot)
        elif probe > 0:
            self._set(slot, hold._replace(until=now + probe))
        return True

    def _set(self, slot: str, hold: Hold) -> None:
        self.holds[slot] = hold
        is_over = hold.until <= monotonic()
        passes = is_over or (hold.times >= SILENT and slot in self._proxied)
        for queue in self.queues:
            (queue.release if passes else queue.hold)(slot)
        if not is_over:
            heappush(self._ends[hold.times >= DEAD], (hold.until, slot))
        self.keep(slot)


def sent_again(request: Request) -> Request:
    """Return a copy of `request` for the scheduler, which does not filter it, nor send it as the
    last in line that may end a hold, since those beside it were refused."""
    again = request.replace(priority=request.priority - 1)
    again.meta[HELD] = count_of(request.meta.get(HELD)) + 1
    return again


def retry_after(response: Response) -> float | None:
    """Return the seconds in the header Retry-After of `response`, or until the date in it, by the
    clock of the host if it has a Date; None without a readable one that is not over. Source: RFC
    9110, section 10.2.3."""
    value = (response.headers.get("Retry-After") or b"").strip()
    if _SECONDS.fullmatch(value):
        seconds = float(value)
    elif (until := _date(value)) is None:
        return None
    else:
        seconds = until - (_date(response.headers.get("Date") or b"") or time.time())
    return seconds if seconds > 0 else None


def _date(value: bytes) -> float | None:
    with suppress(Exception):  # bytes of a stranger
        found = parsedate_tz(value.decode("ascii"))
        return found and mktime_tz((*found[:9], found[9] or 0))  # in GMT without a zone
    return None


def probe_seconds(crawler: Crawler) -> float:
    """Return how long at most a hold goes on for one request that finds out whether it may end: not
    at all without HoldMiddleware."""
    with suppress(AttributeError, RuntimeError):  # a script without an engine has none
        if crawler.get_downloader_middleware(HoldMiddleware) is not None:
            return crawler.settings.getfloat("DOWNLOAD_TIMEOUT") or 180.0
    return 0.0
