"""What the engine works on: the requests in progress, its scheduler, and the end of its crawl."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from scrapy import Request
from scrapy.core import engine, scraper
from scrapy.utils.asyncio import call_later
from twisted.python.failure import Failure

if TYPE_CHECKING:
    from scrapy.crawler import Crawler

from . import get, miss, require

HELD = "bloom_held"
"""Meta key: how often a request was sent again for a hold of its download slot."""
REFUSED = "bloom_refused"
"""Meta key: how often a request was refused as the probe, in one that was refused at all."""
REDIRECT_TIMES = "redirect_times"
TIMES_SENT_AGAIN = ("retry_times", REDIRECT_TIMES, HELD)
"""The meta keys of requests that downloader middlewares send again."""


class EngineProgress:
    """The requests that the engine of `crawler` has, and its progress with them. Raises
    JobDirectoryError that names what this release of Scrapy lacks."""

    cuts_off = False
    """True as soon as the engine cuts downloads off, if `on_cut_off` was called."""

    def __init__(self, crawler: Crawler) -> None:
        self._engine: Any = crawler.engine
        # before the spider is open there are no slots yet
        about = True, SimpleNamespace(schedule=len), None
        engine_slot = getattr(self._engine, "_slot", self) or _new(engine, "_Slot", *about)
        scraper_slot = getattr(get(self._engine, "scraper"), "slot", self) or _new(scraper, "Slot")
        for name, found in {
            "engine._slot.inprogress": get(engine_slot, "inprogress"),
            "engine.scraper.slot.active": get(scraper_slot, "active"),
            "engine.downloader.active": get(self._engine, "downloader", "active"),
        }.items():
            require(name, isinstance(found, Collection))
        if getattr(crawler, "throttler", None) is not None:
            require("engine._throttler_waiting", hasattr(self._engine, "_throttler_waiting"))
        if not hasattr(self._engine.scraper, "_check_if_closing"):
            miss("engine.scraper._check_if_closing", "a stop during an item of start() may not end")
        if hasattr(self._engine.downloader, "stop_async"):
            name = "_handle_downloader_output"
            require(f"engine.{name}", hasattr(self._engine, name))

    def just_downloaded(self) -> Iterator[Request]:
        """Yield the requests between download and callback: those that a downloader middleware
        has answered with another request, such as a redirect, while that one is scheduled."""
        working = self._engine
        # with https://github.com/scrapy/scrapy/pull/6931 they wait before the downloader
        waiting = getattr(working, "_throttler_waiting", ())
        for request in working._slot.inprogress:
            if (
                request not in working.downloader.active
                and request not in working.scraper.slot.active
                and request not in waiting
            ):
                yield request

    def sent_again_as(
        self, request: Request, keys: Iterable[str] = TIMES_SENT_AGAIN
    ) -> Iterator[Request]:
        """Yield the request that a downloader middleware has answered with `request`, a retry, a
        redirect or a copy that waits for the end of a hold, while that one is scheduled."""
        meta = request.meta
        for key in keys:
            if times := meta.get(key):
                is_redirect = key == REDIRECT_TIMES
                urls = meta.get("redirect_urls", ())[-1:] if is_redirect else (request.url,)
                for source in self.just_downloaded():
                    if source.meta.get(key, 0) == times - 1 and source.url in urls:
                        yield source

    def is_in_progress(self, request: Request) -> bool:
        """Return True while `request` is downloaded, its callback or errback runs, or their
        output is not completely enqueued or through the pipelines."""
        working = self._engine
        return (
            request in working._slot.inprogress
            # a callback that downloads its own request takes it out of the first
            or request in working.scraper.slot.active
            or request in working.downloader.active
        )

    @property
    def is_closing(self) -> bool:
        """True as soon as the spider closes: the engine asks for no more requests then."""
        return get(self._engine, "_slot", "closing") is not None

    def with_callbacks(self) -> Iterator[Request]:
        """Yield the requests whose callback or errback runs, or whose items are in pipelines."""
        yield from self._engine.scraper.slot.active

    def on_cut_off(self, function: Callable[[Request], object]) -> None:
        """Call `function` for each request whose download fails after the engine has begun to cut
        downloads off, as it does with https://github.com/scrapy/scrapy/pull/7455."""
        working, downloader = self._engine, self._engine.downloader
        if not hasattr(downloader, "stop_async"):
            return
        stop, handle = downloader.stop_async, working._handle_downloader_output

        async def note_and_stop() -> Any:
            self.cuts_off = True
            return await stop()

        def note_and_handle(result: Any, request: Request) -> Any:
            if self.cuts_off and isinstance(result, Failure):
                function(request)
            return handle(result, request)

        downloader.stop_async, working._handle_downloader_output = note_and_stop, note_and_handle

    def wake(self) -> None:
        """Have the engine ask for requests, and check if it is idle, in the next reactor turn."""
        if self._engine._slot is not None:
            schedule = get(self._engine._slot, "nextcall", "schedule")
            if schedule is None:
                miss("engine._slot.nextcall.schedule", "what is due comes some seconds late")
            else:
                schedule()


async def start_again(crawler: Crawler) -> AsyncIterator[Any] | None:
    """Call `Spider.start()` again, and return its output behind all spider middlewares."""
    return await crawler.engine.scraper.spidermw.process_start()


def scheduler_of(crawler: Crawler) -> object:
    """Return the scheduler of `crawler`; None before the crawl starts, or where Scrapy hides it."""
    with suppress(RuntimeError):  # Scrapy's own, before there is an engine
        found = get(crawler.engine, "scheduler")  # public since 2.19, and false when it is empty
        if found is None:
            found = get(crawler.engine, "_slot", "scheduler")
        if found is None and get(crawler.engine, "_slot") is not None:
            miss("engine._slot.scheduler", "holds and early dropping are off")
        return found
    return None


def end_items_of_start(crawler: Crawler, closed: Any) -> None:
    """Let the close of the spider end, which `closed` will tell, where it waits for items of
    `start()`: Scrapy looks whether these are done only after the next response."""
    look = get(crawler.engine, "scraper", "_check_if_closing")
    closing = get(crawler.engine, "scraper", "slot", "closing")
    if look and closing and not closing.called:
        look()
    if not closed.called:
        call_later(0.1, end_items_of_start, crawler, closed)


def _new(module: object, name: str, *arguments: Any) -> object:
    """Return a new slot; None where this release of Scrapy has none, or another one."""
    with suppress(AttributeError, TypeError):
        return getattr(module, name)(*arguments)
    return None
