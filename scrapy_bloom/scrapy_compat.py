"""Every private name of Scrapy that this package reads, and the check that it is there.

No public signal or attribute says when the engine is done with a request: a request is
in progress until its callback's output is scheduled and through the pipelines.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import scrapy
from scrapy import pqueues, signals
from scrapy.core import engine, scraper
from scrapy.exceptions import DontCloseSpider
from scrapy.extensions import feedexport
from scrapy.spidermiddlewares import httperror
from scrapy.utils import reactor
from scrapy.utils import signal as dispatching

from .errors import JobDirectoryError

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.extensions.feedexport import (
        FeedExporter,
        FeedSlot,
        FeedStorageProtocol,
        ItemFilter,
    )
    from scrapy.http import Response
    from twisted.python.failure import Failure


@runtime_checkable
class StartMiddleware(Protocol):
    """A spider middleware that handles what comes from Spider.start()."""

    def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield what the next one gets."""

    def process_start_requests(self, start: Iterable[Any], spider: Spider) -> Iterable[Any]:
        """Yield what the next one gets."""


class OutputMiddleware(Protocol):
    """A spider middleware that handles what comes from callbacks."""

    def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield what the next one gets."""

    def process_spider_output(self, response: Response, result: Iterable[Any]) -> Iterator[Any]:
        """Yield what the next one gets."""


class EngineView:
    """What the engine of `crawler` works on at the moment.

    Raises JobDirectoryError, with the name that is missing, where this release of
    Scrapy does not tell.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._engine: Any = crawler.engine
        # before the spider is open there are no slots yet
        engine_slot = _get(self._engine, "_slot") or _new_engine_slot()
        scraper_slot = _get(self._engine, "scraper", "slot") or _new_scraper_slot()
        _require("engine._slot", hasattr(self._engine, "_slot"))
        _require("engine.scraper.slot", hasattr(_get(self._engine, "scraper"), "slot"))
        for name, found in (
            ("engine._slot.inprogress", _get(engine_slot, "inprogress")),
            ("engine.scraper.slot.active", _get(scraper_slot, "active")),
            ("engine.downloader.active", _get(self._engine, "downloader", "active")),
        ):
            _require(name, hasattr(found, "__contains__") and hasattr(found, "__iter__"))

    def is_in_progress(self, request: Request) -> bool:
        """Return True while the engine downloads `request`, or its callback or errback
        runs, or what these have yielded is not all enqueued or through the pipelines."""
        working = self._engine
        return (
            request in working._slot.inprogress
            # a callback that downloads its own request takes it out of the first
            or request in working.scraper.slot.active
            or request in working.downloader.active
        )

    def just_downloaded(self) -> Iterator[Request]:
        """Yield the requests whose download has ended and whose result is in no
        callback: those that a downloader middleware has answered with another request,
        a redirect for instance, while that is scheduled."""
        working = self._engine
        for request in working._slot.inprogress:
            if (
                request not in working.downloader.active
                and request not in working.scraper.slot.active
            ):
                yield request

    def with_callbacks(self) -> Iterator[Request]:
        """Yield the requests whose callback or errback runs, or whose items are in the
        pipelines."""
        yield from self._engine.scraper.slot.active

    def sent_again_as(self, request: Request) -> Iterator[Request]:
        """Yield the request that a downloader middleware has answered with `request`, a
        retry or a redirect, while that is scheduled: no callback gets its result."""
        for key in _TIMES_SENT_AGAIN:
            if times := request.meta.get(key):
                for source in self.just_downloaded():
                    if source.meta.get(key, 0) == times - 1 and _comes_of(request, source, key):
                        yield source

    def require_wake(self) -> None:
        """Raise JobDirectoryError unless `wake` can do what it says."""
        slot = _get(self._engine, "_slot") or _new_engine_slot()
        name = "engine._slot.nextcall.schedule"
        _require(name, callable(_get(slot, "nextcall", "schedule")))

    def wake(self) -> None:
        """Have the engine ask for requests, and whether it is idle, in the next turn."""
        if self._engine._slot is not None:
            self._engine._slot.nextcall.schedule()


async def start_again(crawler: Crawler) -> AsyncIterator[Any] | None:
    """Return what `Spider.start()` gives when it is called once more, through all spider
    middlewares."""
    again: AsyncIterator[Any] | None = await crawler.engine.scraper.spidermw.process_start()
    return again


def put_before_engine(crawler: Crawler, middleware: StartMiddleware | OutputMiddleware) -> None:
    """Make `middleware` the last spider middleware before the engine. Raises
    JobDirectoryError where this release of Scrapy has no list of them.

    To be called while the scheduler is built: Scrapy goes through the list after that.
    """
    manager = _get(crawler.engine, "scraper", "spidermw")
    methods = _get(manager, "methods")
    _require("engine.scraper.spidermw.methods", hasattr(methods, "__getitem__"))
    if isinstance(middleware, StartMiddleware):
        methods["process_start"].append(middleware.process_start)
        # Scrapy 2.14 goes through this one for spider middlewares that are older than 2.13
        methods["process_start_requests"].append(middleware.process_start_requests)
    else:
        both = middleware.process_spider_output, middleware.process_spider_output_async
        # Scrapy 2.14 chooses one of a pair; later ones have a single method
        takes_pairs = hasattr(manager, "_get_async_method_pair")
        methods["process_spider_output"].append(both if takes_pairs else both[1])


def _comes_of(request: Request, source: Request, key: str) -> bool:
    if key == "retry_times":
        return request.url == source.url
    return source.url in request.meta.get("redirect_urls", ())[-1:]


class FeedExporterView:
    """What `exporter`, one of Scrapy's feed exporters, has for a feed.

    Raises JobDirectoryError, with the name that is missing, where this release of
    Scrapy has it not.
    """

    def __init__(self, exporter: FeedExporter) -> None:
        self._exporter: Any = exporter
        for name in ("_start_new_batch", "_get_storage", "_get_uri_params", "_load_filter"):
            if not callable(getattr(exporter, name, None)):
                raise JobDirectoryError(
                    f"Scrapy {scrapy.__version__} has no FeedExporter.{name}, which"
                    " DurableFeedExporter needs: use another version of Scrapy or of"
                    " scrapy-bloom, or set BLOOM_DURABLE_FEEDS to False"
                )

    def storage(self, uri: str, options: dict[str, Any]) -> FeedStorageProtocol:
        """Return the storage that `uri` names. Raises whatever it does."""
        storage: FeedStorageProtocol = self._exporter._get_storage(uri, options)
        return storage

    def slot(
        self, spider: Spider | None, template: str, options: dict[str, Any], number: int, uri: str
    ) -> FeedSlot:
        """Return Scrapy's own idea of a batch, for signals, with its storage."""
        slot: FeedSlot = self._exporter._start_new_batch(
            batch_id=number, uri=uri, feed_options=options, spider=spider, uri_template=template
        )
        return slot

    def filter(self, options: dict[str, Any]) -> ItemFilter:
        """Return the item filter of a feed."""
        found: ItemFilter = self._exporter._load_filter(options)
        return found

    def evaluate(self, spider: Spider | None, template: str, function: Any, before: Any) -> str:
        """Return the URI of the batch after `before`, which has a `batch_id`, or of the
        first one."""
        parameters = self._exporter._get_uri_params(spider, function, before)
        apply = getattr(feedexport, "apply_uri_params", None)  # since Scrapy 2.15 or so
        return str(template % parameters if apply is None else apply(template, parameters))


class FailureHooks:
    """The places where `crawler` says that a request has failed.

    Raises JobDirectoryError where this release of Scrapy has one of them not. To be used
    while the scheduler is built, as `put_before_engine`.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._formatter: Any = crawler.logformatter
        self._scraper: Any = _get(crawler.engine, "scraper")
        self._downloader: Any = _get(crawler.engine, "downloader")

    def on_download_error(self, function: Callable[[Failure, Request], None]) -> None:
        """Let `function` be called when no errback has handled the failure of a download."""
        # it is given to LogFormatter.download_error only, and which class that is belongs to
        # the project: so its method is wrapped, in the one object that the scraper has
        is_there = self._formatter is not None
        _require("engine.scraper.logformatter", hasattr(self._scraper, "logformatter"))
        _require("crawler.logformatter", is_there and self._scraper.logformatter is self._formatter)
        log = _get(self._formatter, "download_error")
        _require("LogFormatter.download_error", callable(log))

        def note_and_log(failure: Failure, request: Request, *rest: Any, **options: Any) -> Any:
            function(failure, request)
            return log(failure, request, *rest, **options)

        self._formatter.download_error = note_and_log

    def on_unhandled_status(self, process_spider_exception: Callable[..., None]) -> None:
        """Let a spider middleware's `process_spider_exception` see what is raised on the way
        to the callback or in it, and was not handled before HttpErrorMiddleware."""
        methods = _get(self._scraper, "spidermw", "methods")
        _require("engine.scraper.spidermw.methods", hasattr(methods, "__getitem__"))
        middleware = _get(httperror, "HttpErrorMiddleware")
        _require("HttpErrorMiddleware", isinstance(middleware, type))
        exceptions = methods["process_spider_exception"]
        place = len(exceptions)
        for number, method in enumerate(exceptions):
            if isinstance(getattr(method, "__self__", None), middleware):
                place = number
        exceptions.insert(place, process_spider_exception)
        # what handles an exception goes on with the outputs behind its own place
        methods["process_spider_output"].insert(place, None)

    def on_download_exception(self, process_exception: Callable[..., None]) -> None:
        """Let a downloader middleware's `process_exception` see what no other has handled."""
        methods = _get(self._downloader, "middleware", "methods")
        _require("engine.downloader.middleware.methods", hasattr(methods, "__getitem__"))
        methods["process_exception"].append(process_exception)


class IdleChecks:
    """What has come of the signal spider_idle of `crawler`.

    Raises JobDirectoryError, with the name that is missing, where this release of Scrapy
    does not tell. To be made before the spider is open.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._engine: Any = crawler.engine
        self._signals: Any = crawler.signals
        self.has_closed = False
        """True if the engine has closed the spider for being idle, whatever reason a handler
        gave."""
        for name in ("getAllReceivers", "liveReceivers"):
            _require(f"scrapy.utils.signal.{name}", callable(_get(dispatching, name)))
        self._watch()

    @property
    def may_give_more(self) -> bool:
        """True if a handler that is neither ours nor Scrapy's listens, and the engine has not
        closed the spider for being idle."""
        return not self.has_closed and any(map(_is_foreign, self._handlers()))

    def _watch(self) -> None:
        # what handlers have raised is nowhere but in what the engine gets
        send = self._signals.send_catch_log

        def send_and_note(signal: object, **options: Any) -> list[tuple[Any, Any]]:
            answers: list[tuple[Any, Any]] = send(signal, **options)
            if signal is signals.spider_idle:
                self._note(answers)
            return answers

        self._signals.send_catch_log = send_and_note

    def _handlers(self) -> Iterable[object]:
        module: Any = dispatching
        receivers = module.getAllReceivers(self._signals.sender, signals.spider_idle)
        found: Iterable[object] = module.liveReceivers(receivers)
        return found

    def _note(self, answers: Iterable[tuple[Any, Any]]) -> None:
        held = any(isinstance(_get(answer, "value"), DontCloseSpider) for _, answer in answers)
        self.has_closed = not held and self._engine.spider_is_idle()


def _is_foreign(handler: object) -> bool:
    module = getattr(handler, "__module__", None) or ""
    return module.partition(".")[0] not in {"scrapy", "scrapy_bloom"}


_TIMES_SENT_AGAIN = ("retry_times", "redirect_times")


def scheduler_of(crawler: Crawler) -> object:
    """Return the scheduler that the engine of `crawler` uses, or None where this release
    of Scrapy does not tell."""
    # public since 2.19
    return _get(crawler.engine, "scheduler") or _get(crawler.engine, "_slot", "scheduler")


def path_safe() -> Callable[[str], str]:
    """Return the function that gives Scrapy's priority queues the name of the folder of
    a slot. Raises JobDirectoryError where this release of Scrapy has none."""
    function = getattr(pqueues, "_path_safe", None)
    _require("scrapy.pqueues._path_safe", callable(function))
    assert function is not None
    return function  # type: ignore[no-any-return]


def _require(name: str, is_there: bool) -> None:
    if not is_there:
        raise JobDirectoryError(
            f"Scrapy {scrapy.__version__} has no {name}, from which DurableScheduler learns"
            " what start() gives, or that a request is done or has failed: use another version of"
            " Scrapy or of scrapy-bloom, or set SCHEDULER to 'scrapy.core.scheduler.Scheduler'"
        )


def _get(thing: Any, *names: str) -> Any:
    for name in names:
        thing = getattr(thing, name, None)
    return thing


def _new_engine_slot() -> object:
    slot_class, later = _get(engine, "_Slot"), _get(reactor, "CallLaterOnce")
    _require("scrapy.utils.reactor.CallLaterOnce", callable(later))
    with suppress(TypeError):
        return slot_class and slot_class(True, later(lambda: None), None)
    return None


def _new_scraper_slot() -> object:
    slot_class = getattr(scraper, "Slot", None)
    return slot_class() if slot_class else None
