"""What the engine works on: the requests in progress, and its scheduler."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from twisted.python.failure import Failure

from . import get, miss
from .engine import EngineView

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler


class EngineProgress(EngineView):
    """The requests that the engine of `crawler` has, and its progress with them, for a scheduler.
    Raises as EngineView does."""

    cuts_off = False
    """True as soon as the engine cuts downloads off, if `on_cut_off` was called."""

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
        engine, downloader = self._engine, self._engine.downloader
        if not hasattr(downloader, "stop_async"):
            return
        stop, handle = downloader.stop_async, engine._handle_downloader_output

        async def note_and_stop() -> Any:
            self.cuts_off = True
            return await stop()

        def note_and_handle(result: Any, request: Request) -> Any:
            if self.cuts_off and isinstance(result, Failure):
                function(request)
            return handle(result, request)

        downloader.stop_async, engine._handle_downloader_output = note_and_stop, note_and_handle

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
