"""Drops duplicates next to the spider, before they pass through Scrapy's engine.

Scrapy passes a request through all spider middlewares, a task and two signals before the scheduler
calls the dupefilter. A seen request stays seen, so one whose URL is in the dupefilter's cache can
be dropped as soon as the spider has yielded it. docs/speed.md lists the observable differences.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from pydispatch.dispatcher import getAllReceivers, liveReceivers
from scrapy import Request, signals
from scrapy.core.scheduler import Scheduler
from scrapy.exceptions import NotConfigured
from scrapy.spidermiddlewares.referer import RefererMiddleware
from scrapy.utils.conf import build_component_list
from scrapy.utils.misc import load_object

from ..dupefilter.base import FilterDupeFilter
from ..scrapy_compat import scheduler_of
from ..settings import DROP_EARLY
from ..sqlite_backend.scheduler import DurableScheduler
from ..startup import announce, is_component, is_own_method, is_public, refuse
from .links import leave_out_known

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.settings import BaseSettings
    from typing_extensions import Self


class DropEarlyMiddleware:
    """Spider middleware, next to the spider, that drops those requests of callbacks that the
    scheduler is sure to drop. The add-on enables it.

    It needs BloomDupeFilter or RedisBloomDupeFilter. It stays off if a component other than
    Scrapy's would notice: a spider middleware between it and the engine, a handler of a signal, a
    changed dupefilter or scheduler. BLOOM_DROP_EARLY = True ignores middlewares and handlers,
    False turns it off. A log line at the start says whether it works, or why not.
    """

    order = 1100
    """Its place in SPIDER_MIDDLEWARES: between Scrapy's own and the spider."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._dupefilter: FilterDupeFilter | None = None
        """Set while requests are dropped."""
        self._knows_links = False
        """True while follow_new leaves out links."""
        self._referers: RefererMiddleware | None = None
        """Sets the referer that the log of each request names."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the middleware of `crawler`. Raises NotConfigured if its final settings turn it
        off; refuses the start with ValueError for a bad setting."""
        try:
            reason = _why_unwanted(crawler, cls)
        except ValueError as error:
            refuse(crawler, error)
        if reason is not None:
            announce(crawler, "duplicates", f"not dropped early, {reason}")
            raise NotConfigured
        self = cls(crawler)
        crawler.signals.connect(self._engine_started, signals.engine_started)
        return self

    def process_spider_input(self, response: Response) -> None:
        """Let follow_new and NewLinkExtractor leave out known links of `response`."""
        if self._knows_links and self._dupefilter is not None:
            leave_out_known(response, self._dupefilter)

    def process_spider_output(self, response: Response, result: Iterable[Any]) -> Iterator[Any]:
        """Yield the result of the callback, less known requests."""
        for thing in result:
            if not (isinstance(thing, Request) and self._drop(thing, response)):
                yield thing

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield the result of the callback, less known requests."""
        async for thing in result:
            if not (isinstance(thing, Request) and self._drop(thing, response)):
                yield thing

    def _drop(self, request: Request, response: Response) -> bool:
        """Return True if `request` is known; count and log it then."""
        dupefilter = self._dupefilter
        if dupefilter is None or not dupefilter.is_known(request):
            return False
        if self._referers is not None:
            self._referers.get_processed_request(request, response)  # for the log
        spider = self._crawler.spider
        assert spider is not None
        dupefilter.log(request, spider)
        return True

    def _engine_started(self) -> None:
        crawler, scheduler = self._crawler, scheduler_of(self._crawler)
        dupefilter = getattr(scheduler, "df", None)
        reason = _why_unsound(scheduler, dupefilter) or _why_missed(crawler)
        if reason is not None:
            announce(crawler, "duplicates", f"not dropped early, {reason}")
            return
        self._dupefilter = dupefilter
        if crawler.settings.getbool("DUPEFILTER_DEBUG"):
            self._referers = crawler.get_spider_middleware(RefererMiddleware)
        reason = _why_no_links(crawler, type(self))
        self._knows_links = reason is None
        links = "" if reason is None else f" as requests, not as links: {reason}"
        announce(crawler, "duplicates", f"dropped early{links}")


def _why_unwanted(crawler: Crawler, middleware: type) -> str | None:
    """Return the reason in the settings to be off, None without one."""
    wanted = DROP_EARLY.read(crawler.settings)
    if wanted is False:
        return "BLOOM_DROP_EARLY is False"
    if not is_component(crawler.settings["DUPEFILTER_CLASS"], FilterDupeFilter):
        return "without scrapy-bloom's filter"
    between, _ = _others(crawler.settings, middleware)
    if between and not wanted:
        return f"{_name(between[0])} is between the spider and the engine"
    return None


def _why_no_links(crawler: Crawler, middleware: type) -> str | None:
    """Return why known links must become requests all the same, None if they need not."""
    if crawler.settings.getbool("DUPEFILTER_DEBUG"):
        return "DUPEFILTER_DEBUG logs requests"
    _, nearer = _others(crawler.settings, middleware)
    if nearer and not DROP_EARLY.read(crawler.settings):
        return f"{_name(nearer[0])} is next to the spider"
    return None


def _why_unsound(scheduler: object, dupefilter: object) -> str | None:
    """Return why dropping a known request early could change the crawl, None if it cannot."""
    found = type(scheduler)
    if not (found in (Scheduler, DurableScheduler) or is_public(found, "RedisDurableScheduler")):
        return f"the scheduler is {_name(type(scheduler))}"
    if not is_own_method(scheduler, "enqueue_request", "scrapy", "scrapy_bloom"):
        return f"{_name(type(scheduler))} has a changed enqueue_request"
    if not isinstance(dupefilter, FilterDupeFilter):
        return "without scrapy-bloom's filter"
    return dupefilter.why_not_early()


def _why_missed(crawler: Crawler) -> str | None:
    """Return the handler that would miss the signals of a dropped request, None without one."""
    if DROP_EARLY.read(crawler.settings):
        return None
    for name in ("request_scheduled", "request_dropped"):
        signal = getattr(signals, name)
        for receiver in liveReceivers(getAllReceivers(crawler.signals.sender, signal)):
            if not _misses_nothing(receiver):
                return f"{_name(receiver)} handles {name}"
    return None


def _others(settings: BaseSettings, middleware: type) -> tuple[list[object], list[object]]:
    """Return the spider middlewares of neither Scrapy nor this package, in two lists: between the
    engine and `middleware`, and between `middleware` and the spider."""
    with_base = getattr(settings, "get_component_priority_dict_with_base", settings.getwithbase)
    order = [load_object(each) for each in build_component_list(with_base("SPIDER_MIDDLEWARES"))]
    place = order.index(middleware) if middleware in order else len(order)
    between, nearer = order[:place], order[place + 1 :]
    return [o for o in between if not _is_known(o)], [o for o in nearer if not _is_known(o)]


def _misses_nothing(receiver: Any) -> bool:
    """Return True for a handler of Scrapy or of DeltaMiddleware, which can do without the signals
    of dropped requests."""
    owner = getattr(receiver, "__self__", None)
    if is_public(type(owner), "DeltaMiddleware"):
        return is_own_method(owner, receiver.__name__, "scrapy_bloom")
    return _is_scrapys(receiver) and (owner is None or _is_scrapys(type(owner)))


def _is_known(middleware: object) -> bool:
    """Return True for a spider middleware without effect on dropped requests."""
    return _is_scrapys(middleware) or is_public(middleware, "DeltaMiddleware")


def _is_scrapys(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "scrapy"


def _name(thing: object) -> str:
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}"
