"""Duplicates dropped next to the spider, before Scrapy works on them.

Scrapy passes a request through all spider middlewares, a task and two signals before
the scheduler asks the dupefilter. What was once seen stays seen, so a request that the
recent URLs answer for can be dropped as soon as the spider has yielded it. docs/speed.md
says who notices.
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
from ..settings import wants_early
from ..sqlite_backend.scheduler import DurableScheduler
from ..startup import announce, is_component, is_own_method, is_public, refuse
from .links import leave_out_known

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from scrapy.settings import BaseSettings
    from typing_extensions import Self


class DropEarlyMiddleware:
    """Spider middleware for SPIDER_MIDDLEWARES, next to the spider, that drops requests of
    callbacks that the scheduler is sure to drop. The add-on puts it there.

    It works with BloomDupeFilter and RedisBloomDupeFilter, and only where nobody but
    Scrapy itself would have seen those requests on their way: no other spider middleware
    between it and the engine, no handler of a signal, no dupefilter or scheduler that
    does more. BLOOM_DROP_EARLY = True lets it go past middlewares and handlers, False
    turns it off. The line at the start says whether it works, and why not.
    """

    order = 1100
    """In SPIDER_MIDDLEWARES: between Scrapy's own and the spider."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._dupefilter: FilterDupeFilter | None = None
        """While requests are dropped."""
        self._knows_links = False
        """While follow_new leaves out links."""
        self._referers: RefererMiddleware | None = None
        """For the log of each request, which names its referer."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the middleware of `crawler`.

        Raises NotConfigured where the settings, which are final now, are a reason to be
        off. Refuses the start with ValueError for a bad one.
        """
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
        """Note who knows the links of `response`."""
        if self._knows_links and self._dupefilter is not None:
            leave_out_known(response, self._dupefilter)

    def process_spider_output(self, response: Response, result: Iterable[Any]) -> Iterator[Any]:
        """Yield all but the requests that are dropped."""
        for thing in result:
            if not (isinstance(thing, Request) and self._drop(thing, response)):
                yield thing

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield all but the requests that are dropped."""
        async for thing in result:
            if not (isinstance(thing, Request) and self._drop(thing, response)):
                yield thing

    def _drop(self, request: Request, response: Response) -> bool:
        """Return True if `request` is known; it is counted and logged then."""
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
    """Return what in the settings is a reason to be off, if anything is."""
    wanted = wants_early(crawler.settings)
    if wanted is False:
        return "BLOOM_DROP_EARLY is False"
    if not is_component(crawler.settings["DUPEFILTER_CLASS"], FilterDupeFilter):
        return "without scrapy-bloom's filter"
    between, _ = _others(crawler.settings, middleware)
    if between and not wanted:
        return f"{_name(between[0])} is between the spider and the engine"
    return None


def _why_no_links(crawler: Crawler, middleware: type) -> str | None:
    """Return why a link may not be taken for the request that it becomes, if that is so."""
    if crawler.settings.getbool("DUPEFILTER_DEBUG"):
        return "DUPEFILTER_DEBUG logs requests"
    _, nearer = _others(crawler.settings, middleware)
    if nearer and not wants_early(crawler.settings):
        return f"{_name(nearer[0])} is next to the spider"
    return None


def _why_unsound(scheduler: object, dupefilter: object) -> str | None:
    """Return why a request that is known may not just be dropped, if that is so."""
    found = type(scheduler)
    if not (found in (Scheduler, DurableScheduler) or is_public(found, "RedisDurableScheduler")):
        return f"the scheduler is {_name(type(scheduler))}"
    if not is_own_method(scheduler, "enqueue_request", "scrapy", "scrapy_bloom"):
        return f"{_name(type(scheduler))} has a changed enqueue_request"
    if not isinstance(dupefilter, FilterDupeFilter):
        return "without scrapy-bloom's filter"
    return dupefilter.why_not_early()


def _why_missed(crawler: Crawler) -> str | None:
    """Return what handles a signal that is not sent for a dropped request, if anything does."""
    if wants_early(crawler.settings):
        return None
    for name in ("request_scheduled", "request_dropped"):
        signal = getattr(signals, name)
        for receiver in liveReceivers(getAllReceivers(crawler.signals.sender, signal)):
            if not _misses_nothing(receiver):
                return f"{_name(receiver)} handles {name}"
    return None


def _others(settings: BaseSettings, middleware: type) -> tuple[list[object], list[object]]:
    """Return the spider middlewares of neither Scrapy nor this package: those between the
    engine and `middleware`, and those between it and the spider."""
    with_base = getattr(settings, "get_component_priority_dict_with_base", settings.getwithbase)
    order = [load_object(each) for each in build_component_list(with_base("SPIDER_MIDDLEWARES"))]
    place = order.index(middleware) if middleware in order else len(order)
    between, nearer = order[:place], order[place + 1 :]
    return [o for o in between if not _is_known(o)], [o for o in nearer if not _is_known(o)]


def _misses_nothing(receiver: Any) -> bool:
    """Return True for a handler of Scrapy's or of DeltaMiddleware's, which need not hear of a
    dropped request."""
    owner = getattr(receiver, "__self__", None)
    if is_public(type(owner), "DeltaMiddleware"):
        return is_own_method(owner, receiver.__name__, "scrapy_bloom")
    return _is_scrapys(receiver) and (owner is None or _is_scrapys(type(owner)))


def _is_known(middleware: object) -> bool:
    """Return True for a spider middleware that does nothing to a request that is dropped."""
    return _is_scrapys(middleware) or is_public(middleware, "DeltaMiddleware")


def _is_scrapys(thing: object) -> bool:
    return str(getattr(thing, "__module__", "")).partition(".")[0] == "scrapy"


def _name(thing: object) -> str:
    named = thing if hasattr(thing, "__qualname__") else type(thing)
    return f"{named.__module__}.{named.__qualname__}"
