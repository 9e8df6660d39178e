"""Finds the origin of an item: the request that its response answers, or `start()`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import signals
from twisted.python.failure import Failure

from ..scrapy_private.progress import EngineProgress

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

AT_THE_ENGINES_END = -1_000_000
"""The order of the downloader middleware that gets a response last."""

_origins: WeakKeyDictionary[Crawler, WeakKeyDictionary[Response, Request | None]] = (
    WeakKeyDictionary()
)


def origins_of(crawler: Crawler) -> WeakKeyDictionary[Response, Request | None]:
    """Return the requests of the engine by response, None for one that answers several at once."""
    return _origins.setdefault(crawler, WeakKeyDictionary())


def request_of(crawler: Crawler, source: Response | Failure | None) -> Request | None:
    """Return the engine's request that a response or a failure answers; None for several."""
    if source is None or isinstance(source, Failure):
        return getattr(source, "request", None)
    return origins_of(crawler).get(source, source.request)


class StartItems:
    """Recognises items of `Spider.start()` by identity. An untracked item without a response
    replaces the oldest tracked one: a pipeline has made another item of it."""

    def __init__(self, crawler: Crawler) -> None:
        self._tracked: dict[int, Any] = {}
        crawler.signals.connect(self._item_is_gone, signals.item_dropped)
        crawler.signals.connect(self._item_is_gone, signals.item_error)

    def track(self, item: Any) -> None:
        """Recognise `item` as one of `start()` from now on."""
        self._tracked[id(item)] = item

    def take(self, item: Any) -> bool:
        """Return True if `item`, which was scraped without a response, is one of `start()`."""
        if not self._tracked:
            return False
        if self._tracked.pop(id(item), None) is None:
            del self._tracked[next(iter(self._tracked))]
        return True

    def _item_is_gone(self, item: Any) -> None:
        self._tracked.pop(id(item), None)


class ResponseOrigins:
    """Downloader middleware at the engine's end, where `request` is the one that the engine has
    sent: `response.request` may be another."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler, self._origins = crawler, origins_of(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the middleware."""
        return cls(crawler)

    def process_response(self, request: Request, response: Response) -> Response:
        """Record the request that `response` answers."""
        former = self._origins.setdefault(response, request)
        if former is not request:
            # a middleware has it from `engine.download_async()`, or from a page that is done
            is_over = former and not EngineProgress(self._crawler).is_in_progress(former)
            self._origins[response] = request if is_over else None
        return response
