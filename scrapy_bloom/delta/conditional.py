"""Asks for pages that earlier rounds have done only if they have changed."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scrapy import Request, signals
from scrapy.exceptions import NotConfigured

from ..crawl.holds import sent_again
from ..scrapy_private.progress import scheduler_of
from ..startup import fetches_one_page
from .middleware import DeltaMiddleware
from .pages import VALIDATORS, may_be_conditional, unmodified
from .settings import DELTA_CONDITIONAL

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

logger = logging.getLogger("scrapy_bloom.delta.middleware")

ASKED = "_bloom_conditional"
"""In the meta of a request while it has headers of ConditionalMiddleware."""
_CONDITIONS = frozenset((b"if-match", b"if-none-match", b"if-modified-since", b"range"))
"""Headers of a spider, in small letters, beside which there are none of ours."""


class ConditionalMiddleware:
    """Downloader middleware, the nearest to the downloader, that adds `If-None-Match` and
    `If-Modified-Since` to requests of callbacks for pages with validators. The add-on enables it.

    A request has these headers only on its way, so no copy of it, such as a redirect, has them. A
    page that has not changed goes on to the scraper, as others do, with an empty callback.
    """

    order = 1_000_000
    """Its place in DOWNLOADER_MIDDLEWARES."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._unmodified: WeakSet[Request] = WeakSet()
        crawler.signals.connect(self._request_scheduled, signals.request_scheduled)
        crawler.signals.connect(self._response_received, signals.response_received)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the middleware. Raises NotConfigured without BLOOM_DELTA_CONDITIONAL, in commands
        for one page, and with Scrapy's HTTP cache."""
        settings = crawler.settings
        if fetches_one_page(crawler) or not DELTA_CONDITIONAL.read(settings):
            raise NotConfigured
        if settings.getbool("HTTPCACHE_ENABLED"):
            logger.info(
                "BLOOM_DELTA_CONDITIONAL is off: with HTTPCACHE_ENABLED the cache could store an"
                " answer that has no page",
                extra={"spider": crawler.spider},
            )
            raise NotConfigured
        return cls(crawler)

    def process_request(self, request: Request) -> None:
        """Add the validators of the page, unless `request` is one of `start()`, was not dispatched
        by the scheduler, or has conditions of its own."""
        headers = request.headers
        if (
            may_be_conditional(request)
            and request.meta.get("depth")  # of a callback, and not of a list of seeds either
            and _CONDITIONS.isdisjoint(map(bytes.lower, headers))
            and self._is_dispatched(request)
            and (found := self._validators_of(request))
        ):
            request.meta[ASKED] = True
            for name, value in zip(VALIDATORS, found, strict=True):
                if value:
                    headers[name] = value

    def process_response(self, request: Request, response: Response) -> Request | Response:
        """Remove the headers from `request`. Return a copy of it if the page has not changed, and
        its mark is gone."""
        if not _without_headers(request) or response.status != 304:
            return response
        if not self._validators_of(request):
            again = sent_again(request)
            again.dont_filter = True
            return again
        self._unmodified.add(request)
        return response

    def process_exception(self, request: Request, exception: Exception) -> None:
        """Remove the headers from `request`."""
        _without_headers(request)

    def _request_scheduled(self, request: Request) -> None:
        """Remove the headers from a copy that was made on the way to the downloader."""
        _without_headers(request)

    def _response_received(self, response: Response, request: Request) -> None:
        """Call neither callback nor errback of a page that has not changed."""
        if request in self._unmodified and response.status == 304:
            request.callback, request.errback = unmodified, None
            request.meta["handle_httpstatus_all"] = True
            self._crawler.stats.inc_value("bloom/delta_unmodified")

    def _is_dispatched(self, request: Request) -> bool:
        """Return True unless a callback, `start()` or a pipeline has asked for `request`."""
        scheduler: Any = scheduler_of(self._crawler)
        return scheduler is not None and bool(scheduler.has_dispatched(request))

    def _validators_of(self, request: Request) -> list[bytes]:
        delta = self._crawler.get_spider_middleware(DeltaMiddleware)
        skipping = None if delta is None else delta.skipping
        return [] if skipping is None else skipping.validators_of(request)


def _without_headers(request: Request) -> bool:
    """Remove what ConditionalMiddleware has added; return False if that was nothing."""
    if not request.meta or not request.meta.pop(ASKED, False):
        return False
    for name in VALIDATORS:
        request.headers.pop(name, None)
    return True
