"""Where an item comes from: which request a response is the answer to, and what else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from scrapy import Request, signals
from scrapy.exceptions import NotConfigured

from ..settings import wants_delta

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response
    from typing_extensions import Self

AT_THE_ENGINES_END = -1_000_000
"""The order of a downloader middleware that gets a response as the last."""

_origins: WeakKeyDictionary[Crawler, WeakKeyDictionary[Response, Request | None]] = (
    WeakKeyDictionary()
)


def origins_of(crawler: Crawler) -> WeakKeyDictionary[Response, Request | None]:
    """Return the requests of the engine by the responses that it got for them; None for
    a response that answers more than one."""
    return _origins.setdefault(crawler, WeakKeyDictionary())


class StartItems:
    """Tells which items come from `Spider.start()`: as they leave it they are known by
    identity, and where a pipeline makes another item of one, by there being none else."""

    def __init__(self, crawler: Crawler) -> None:
        self._under_way: dict[int, Any] = {}
        crawler.signals.connect(self._item_is_gone, signals.item_dropped)
        crawler.signals.connect(self._item_is_gone, signals.item_error)

    async def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Note the items on their way to the engine."""
        async for thing in start:
            self._note(thing)
            yield thing

    def process_start_requests(self, start: Iterable[Any], spider: object) -> Iterator[Any]:
        """Do the same with middlewares for Scrapy before 2.13."""
        for thing in start:
            self._note(thing)
            yield thing

    def take(self, item: Any) -> bool:
        """Return True if `item`, which was scraped without a response, is one of them."""
        if not self._under_way:
            return False
        if self._under_way.pop(id(item), None) is None:
            del self._under_way[next(iter(self._under_way))]
        return True

    def _note(self, thing: Any) -> None:
        if not isinstance(thing, Request):
            self._under_way[id(thing)] = thing

    def _item_is_gone(self, item: Any) -> None:
        self._under_way.pop(id(item), None)


class ResponseOrigins:
    """Downloader middleware at the engine's end: there `request` is the one that the
    engine has sent, whatever `response.request` says."""

    def __init__(self, crawler: Crawler) -> None:
        self._origins = origins_of(crawler)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the middleware, or disable it where nobody asks for origins."""
        if not (crawler.settings.get("JOBDIR") or wants_delta(crawler.settings)):
            raise NotConfigured
        return cls(crawler)

    def process_response(self, request: Request, response: Response) -> Response:
        """Note where `response` comes from."""
        if self._origins.setdefault(response, request) is not request:
            self._origins[response] = None
        return response
