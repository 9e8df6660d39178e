"""Asks for pages that earlier rounds have done only if they have changed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scrapy import Request, signals
from scrapy.exceptions import NotConfigured

from ..crawl.failed_request import ATTEMPTS_KEY
from ..crawl.holds import sent_again
from ..scrapy_private.progress import scheduler_of
from ..startup import fetches_one_page, is_component, refuse
from .middleware import DeltaMiddleware
from .pages import VALIDATORS, may_be_conditional, unmodified
from .settings import DELTA, DELTA_CONDITIONAL

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

logger = logging.getLogger(__name__)

ASKED = "_bloom_conditional"
"""In the meta of a request while it has headers of ConditionalMiddleware."""
_OF_THE_SPIDER = (*VALIDATORS, "If-Match", "Range")
"""Headers beside which there are none of ours."""


class ConditionalMiddleware:
    """Downloader middleware, the nearest to the downloader, that adds the validators of pages to
    requests of callbacks. The add-on enables it.

    A request has them only on its way, so that no redirect or retry has them. A page that has not
    changed goes on to the scraper, as others do, with an empty callback.
    """

    order = 1_000_000
    """Its place in DOWNLOADER_MIDDLEWARES."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._unmodified: WeakSet[Request] = WeakSet()
        # copies that were made on the way to the downloader come back to the scheduler
        crawler.signals.connect(_without_headers, signals.request_scheduled)
        crawler.signals.connect(self._response_received, signals.response_received)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the middleware. Raises NotConfigured without BLOOM_DELTA_CONDITIONAL, in commands
        for one page, and with Scrapy's HTTP cache; refuses the start for a setting."""
        settings, lack = crawler.settings, ""
        try:
            if fetches_one_page(crawler) or not DELTA_CONDITIONAL.read(settings):
                raise NotConfigured
            if DELTA.read(settings) is None:
                lack = "BLOOM_DELTA is None: set it to 'item', for instance"
            elif not is_component(settings["SCHEDULER"], "LedgerScheduler"):
                lack = f"SCHEDULER is {settings['SCHEDULER']!r}: set it to one of this package"
            if lack:
                raise ValueError(f"BLOOM_DELTA_CONDITIONAL is True, and {lack}, or leave it out")
        except ValueError as error:
            refuse(crawler, error)
        if settings.getbool("HTTPCACHE_ENABLED"):
            text = "BLOOM_DELTA_CONDITIONAL is off: with HTTPCACHE_ENABLED a 304 could be stored"
            logger.info(text, extra={"spider": crawler.spider})
            raise NotConfigured
        return cls(crawler)

    def process_request(self, request: Request) -> None:
        """Add the validators of the page, unless `request` is one of `start()` or of a list of
        seeds, has failed before, was not dispatched by the scheduler, or has its own conditions."""
        scheduler: Any = scheduler_of(self._crawler)
        if (
            may_be_conditional(request)
            and request.meta.get("depth")
            and ATTEMPTS_KEY not in request.meta
            and not any(name in request.headers for name in _OF_THE_SPIDER)
            and scheduler.has_dispatched(request)
            and (found := self._validators_of(request))
        ):
            request.meta[ASKED] = True
            for name, value in zip(VALIDATORS, found, strict=True):
                if value:
                    request.headers[name] = value

    def process_response(self, request: Request, response: Response) -> Request | Response:
        """Remove the headers from `request`. Return a copy of it if the page has not changed, and
        its mark is gone."""
        if not _without_headers(request) or response.status != 304:
            return response
        if self._validators_of(request):
            self._unmodified.add(request)
            return response
        again = sent_again(request)
        again.dont_filter = True
        return again

    def _response_received(self, response: Response, request: Request) -> None:
        """Call neither callback nor errback of a page that has not changed."""
        if request in self._unmodified and response.status == 304:
            request.callback, request.errback = unmodified, None
            request.meta["handle_httpstatus_all"] = True
            self._crawler.stats.inc_value("bloom/delta_unmodified")

    def _validators_of(self, request: Request) -> list[bytes]:
        delta = self._crawler.get_spider_middleware(DeltaMiddleware)
        return delta.skipping.validators_of(request) if delta and delta.skipping else []


def _without_headers(request: Request) -> bool:
    """Remove what ConditionalMiddleware has added; return False if that was nothing."""
    is_asked = bool(request.meta) and request.meta.pop(ASKED, False)
    for name in VALIDATORS if is_asked else ():
        request.headers.pop(name, None)
    return is_asked
