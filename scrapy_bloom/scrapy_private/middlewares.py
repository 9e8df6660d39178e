"""Spider middlewares where the settings cannot put them, and what fails on the way."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.spidermiddlewares.httperror import HttpErrorMiddleware
from twisted.python.failure import Failure

from ..errors import JobDirectoryError

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from scrapy.http import Response

from . import get, miss, require


class OutputFilter:
    """A spider middleware that leaves requests out of the output of callbacks."""

    def process_spider_output(self, response: Response, result: Iterable[Any]) -> Iterator[Any]:
        """Yield the result of the callback, less the requests that are skipped."""
        for thing in result:
            if not (isinstance(thing, Request) and self._skips(thing, response)):
                yield thing
        self._complete(response)

    async def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield the result of the callback, less the requests that are skipped."""
        async for thing in result:
            if not (isinstance(thing, Request) and self._skips(thing, response)):
                yield thing
        self._complete(response)

    def _skips(self, request: Request, response: Response) -> bool:
        """Return True if `request`, of the callback of `response`, goes no further."""
        raise NotImplementedError

    def _complete(self, response: Response) -> None:
        """Called when the callback has ended without an error."""


def put_before_engine(crawler: Crawler, middleware: Any) -> None:
    """Make `middleware`, an OutputFilter or one for the output of `Spider.start()`, the last spider
    middleware before the engine. Works only while the scheduler is built, before Scrapy uses the
    list of middlewares. Raises JobDirectoryError where this release of Scrapy has no such list."""
    methods = _methods(crawler, "engine.scraper.spidermw.methods")
    if not isinstance(middleware, OutputFilter):
        name = "engine.scraper.spidermw.process_start"
        require(name, callable(get(crawler, *name.split("."))))
        methods["process_start"].append(middleware.process_start)
        # Scrapy 2.14 goes through this one for spider middlewares that are older than 2.13
        methods["process_start_requests"].append(middleware.process_start_requests)
    else:
        both = middleware.process_spider_output, middleware.process_spider_output_async
        # Scrapy 2.14 chooses one of a pair; later ones have a single method
        takes_pairs = hasattr(crawler.engine.scraper.spidermw, "_get_async_method_pair")
        methods["process_spider_output"].append(both if takes_pairs else both[1])


def output_methods(crawler: Crawler) -> list[Callable[..., Any]] | None:
    """Return the methods that Scrapy calls for the output of callbacks, from the spider to the
    engine; None where this release of Scrapy hides them."""
    try:
        output = _methods(crawler, "engine.scraper.spidermw.methods")["process_spider_output"]
    except JobDirectoryError:
        miss("engine.scraper.spidermw.methods", "duplicates are not dropped early")
        return None
    pairs = (each if isinstance(each, tuple) else (each,) for each in output)  # as Scrapy 2.14 has
    return [method for pair in pairs for method in pair if method is not None]


def skip_output_of(crawler: Crawler, middleware: object) -> None:
    """Pass the output of callbacks to `middleware` no more, where Scrapy lets it be skipped. Works
    only before the first one."""
    with suppress(JobDirectoryError):
        output = _methods(crawler, "engine.scraper.spidermw.methods")["process_spider_output"]
        for place, found in enumerate(output):
            method = found[0] if isinstance(found, tuple) else found
            if getattr(method, "__self__", None) is middleware:
                output[place] = None


def _methods(crawler: Crawler, name: str) -> Any:
    """Return the methods of middlewares that Scrapy calls, in lists by name. Raises
    JobDirectoryError where this release of Scrapy hides them."""
    methods = get(crawler, *name.split("."))
    require(name, hasattr(methods, "__getitem__"))
    return methods


def on_download_error(crawler: Crawler, function: Callable[[Failure, Request], None]) -> None:
    """Call `function` for each failed download that no errback has handled. As the next two, it
    works and raises as `put_before_engine`."""
    # Scrapy passes such a failure to LogFormatter.download_error only, and LOG_FORMATTER is
    # the project's, so the method is wrapped in the one object that the scraper uses
    formatter: Any = get(crawler.engine, "scraper", "logformatter")
    require("engine.scraper.logformatter", formatter is not None)
    log = get(formatter, "download_error")
    require("LogFormatter.download_error", callable(log))

    def note_and_log(failure: Failure, request: Request, *rest: Any, **options: Any) -> Any:
        function(failure, request)
        return log(failure, request, *rest, **options)

    formatter.download_error = note_and_log


def on_unhandled_status(crawler: Crawler, process_spider_exception: Callable[..., None]) -> None:
    """Pass to `process_spider_exception` of a spider middleware each exception, in the callback or
    on the way to it, that reaches HttpErrorMiddleware."""
    methods = _methods(crawler, "engine.scraper.spidermw.methods")
    exceptions = methods["process_spider_exception"]
    owners = [getattr(method, "__self__", None) for method in exceptions]
    found = (place for place, each in enumerate(owners) if isinstance(each, HttpErrorMiddleware))
    place = max(found, default=len(exceptions))
    exceptions.insert(place, process_spider_exception)
    # what is handled at this place goes on with the outputs behind the same place
    methods["process_spider_output"].insert(place, None)


def on_download_exception(crawler: Crawler, process_exception: Callable[..., None]) -> None:
    """Pass to `process_exception` of a downloader middleware what no other has handled."""
    methods = _methods(crawler, "engine.downloader.middleware.methods")
    methods["process_exception"].append(process_exception)
