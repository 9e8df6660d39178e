"""Each private name of Scrapy that this package uses, checked when it is first needed.

CONTRIBUTING.md says what each serves. The start is refused without one only where a page could be
lost; any other is missed in one warning.

No public signal or attribute of Scrapy tells when the engine is done with a request. A request is
in progress until the output of its callback is scheduled or through the pipelines.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import scrapy
from pydispatch.dispatcher import getAllReceivers, liveReceivers
from scrapy import Request, pqueues, signals, squeues
from scrapy.core import engine, scraper
from scrapy.downloadermiddlewares.httpcache import HttpCacheMiddleware
from scrapy.exceptions import DontCloseSpider
from scrapy.extensions import feedexport
from scrapy.extensions.httpcache import FilesystemCacheStorage
from scrapy.settings import BaseSettings
from scrapy.spidermiddlewares import httperror
from scrapy.utils import reactor
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.httpobj import urlparse_cached
from twisted.python.failure import Failure

from .errors import JobDirectoryError

if TYPE_CHECKING:
    from scrapy import Spider
    from scrapy.crawler import Crawler
    from scrapy.extensions.feedexport import FeedSlot, FeedStorageProtocol, ItemFilter
    from scrapy.http import Response

logger = logging.getLogger("scrapy_bloom.startup")

HELD = "bloom_held"
"""Meta key: how often a request was sent again for a hold of its download slot."""
REFUSED = "bloom_refused"
"""Meta key: how often a request was refused as the probe, in one that was refused at all."""
REDIRECT_TIMES = "redirect_times"
TIMES_SENT_AGAIN = ("retry_times", REDIRECT_TIMES, HELD)
"""The meta keys of requests that downloader middlewares send again."""


@runtime_checkable
class StartMiddleware(Protocol):
    """A spider middleware for the output of `Spider.start()`."""

    def process_start(self, start: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Yield the input of the next middleware."""

    def process_start_requests(self, start: Iterable[Any], spider: Spider) -> Iterable[Any]:
        """Yield the input of the next middleware."""


class OutputMiddleware(Protocol):
    """A spider middleware for the output of callbacks."""

    def process_spider_output_async(
        self, response: Response, result: AsyncIterator[Any]
    ) -> AsyncIterator[Any]:
        """Yield the input of the next middleware."""

    def process_spider_output(self, response: Response, result: Iterable[Any]) -> Iterator[Any]:
        """Yield the input of the next middleware."""


class EngineView:
    """The requests that the engine of `crawler` has.

    Raises JobDirectoryError that names what this release of Scrapy lacks.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._engine: Any = crawler.engine
        self.cuts_off = False
        """True as soon as the engine cuts downloads off, if `on_cut_off` was called."""
        # before the spider is open there are no slots yet
        engine_slot = _get(self._engine, "_slot") or _new_engine_slot()
        scraper_slot = _get(self._engine, "scraper", "slot") or getattr(scraper, "Slot", object)()
        _require("engine._slot", hasattr(self._engine, "_slot"))
        _require("engine.scraper.slot", hasattr(_get(self._engine, "scraper"), "slot"))
        for name, found in (
            ("engine._slot.inprogress", _get(engine_slot, "inprogress")),
            ("engine.scraper.slot.active", _get(scraper_slot, "active")),
            ("engine.downloader.active", _get(self._engine, "downloader", "active")),
        ):
            _require(name, hasattr(found, "__contains__") and hasattr(found, "__iter__"))
        for name, is_needed in (
            ("_throttler_waiting", getattr(crawler, "throttler", None) is not None),
            ("_handle_downloader_output", hasattr(self._engine.downloader, "stop_async")),
        ):
            _require(f"engine.{name}", not is_needed or hasattr(self._engine, name))

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

    def with_callbacks(self) -> Iterator[Request]:
        """Yield the requests whose callback or errback runs, or whose items are in pipelines."""
        yield from self._engine.scraper.slot.active

    def sent_again_as(
        self, request: Request, keys: Iterable[str] = TIMES_SENT_AGAIN
    ) -> Iterator[Request]:
        """Yield the request that a downloader middleware has answered with `request`, a retry, a
        redirect or a copy that waits for the end of a hold, while that one is scheduled. No
        callback gets the result of the former. `keys` count the kinds that are asked for."""
        meta = request.meta
        for key in keys:
            if times := meta.get(key):
                is_redirect = key == REDIRECT_TIMES
                urls = meta.get("redirect_urls", ())[-1:] if is_redirect else (request.url,)
                for source in self.just_downloaded():
                    if source.meta.get(key, 0) == times - 1 and source.url in urls:
                        yield source

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
            schedule = _get(self._engine._slot, "nextcall", "schedule")
            if schedule is None:
                _miss("engine._slot.nextcall.schedule", "what is due comes some seconds late")
            else:
                schedule()


def close_spider(crawler: Crawler, reason: str) -> None:
    """Close the spider on the next reactor turn, unless it is closed then. Raises RuntimeError
    without a reactor."""

    def close() -> None:
        closed = deferred_from_coro(crawler.engine.close_spider_async(reason=reason))
        closed.addErrback(lambda failure: None)

    call_later(0, close)


async def start_again(crawler: Crawler) -> AsyncIterator[Any] | None:
    """Call `Spider.start()` again, and return its output behind all spider middlewares."""
    return await crawler.engine.scraper.spidermw.process_start()


def put_before_engine(crawler: Crawler, middleware: StartMiddleware | OutputMiddleware) -> None:
    """Make `middleware` the last spider middleware before the engine.

    Works only while the scheduler is built, before Scrapy uses the list of middlewares. Raises
    JobDirectoryError where this release of Scrapy has no such list.
    """
    methods = _methods(crawler, "engine.scraper.spidermw.methods")
    if isinstance(middleware, StartMiddleware):
        name = "engine.scraper.spidermw.process_start"
        _require(name, callable(_get(crawler, *name.split("."))))
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
        methods = _methods(crawler, "engine.scraper.spidermw.methods")
    except JobDirectoryError:
        _miss("engine.scraper.spidermw.methods", "duplicates are not dropped early")
        return None
    found: list[Callable[..., Any]] = []
    for each in methods["process_spider_output"]:
        if each is not None:  # Scrapy 2.14 has pairs
            found += each if isinstance(each, tuple) else (each,)
    return found


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
    methods = _get(crawler, *name.split("."))
    _require(name, hasattr(methods, "__getitem__"))
    return methods


class FeedExporterView:
    """The parts of a feed that `exporter`, a feed exporter of Scrapy, makes.

    Raises JobDirectoryError that names what this release of Scrapy lacks.
    """

    def __init__(self, exporter: object) -> None:
        self._exporter: Any = exporter
        for name in ("_start_new_batch", "_get_storage", "_get_uri_params", "_load_filter"):
            if not callable(getattr(exporter, name, None)):
                raise JobDirectoryError(
                    f"Scrapy {scrapy.__version__} has no FeedExporter.{name}, which"
                    " DurableFeedExporter requires: use another version of Scrapy or of"
                    " scrapy-bloom, or set BLOOM_DURABLE_FEEDS to False"
                )

    def storage(self, uri: str, options: dict[str, Any]) -> FeedStorageProtocol:
        """Return the storage of `uri`. Raises what its constructor raises."""
        storage: FeedStorageProtocol = self._exporter._get_storage(uri, options)
        return storage

    def slot(
        self, spider: Spider | None, template: str, options: dict[str, Any], number: int, uri: str
    ) -> FeedSlot:
        """Return Scrapy's object for a batch, as signals carry it, with its storage."""
        slot: FeedSlot = self._exporter._start_new_batch(
            batch_id=number, uri=uri, feed_options=options, spider=spider, uri_template=template
        )
        return slot

    def filter(self, options: dict[str, Any]) -> ItemFilter:
        """Return the item filter that the `options` of a feed name."""
        found: ItemFilter = self._exporter._load_filter(options)
        return found

    def evaluate(self, spider: Spider | None, template: str, function: Any, before: Any) -> str:
        """Return the URI of the batch after `before`, which has a `batch_id`; of the first batch
        if `before` is None."""
        parameters = self._exporter._get_uri_params(spider, function, before)
        apply = getattr(feedexport, "apply_uri_params", None)  # since Scrapy 2.15 or so
        return str(template % parameters if apply is None else apply(template, parameters))


def on_download_error(crawler: Crawler, function: Callable[[Failure, Request], None]) -> None:
    """Call `function` for each failed download that no errback has handled.

    As the next two, it works only while the scheduler is built, as `put_before_engine`, and raises
    JobDirectoryError that names what this release of Scrapy lacks.
    """
    # Scrapy passes such a failure to LogFormatter.download_error only, and LOG_FORMATTER is
    # the project's, so the method is wrapped in the one object that the scraper uses
    formatter = _get(crawler.engine, "scraper", "logformatter")
    _require("engine.scraper.logformatter", formatter is not None)
    _require("crawler.logformatter", crawler.logformatter is formatter)
    log = _get(formatter, "download_error")
    _require("LogFormatter.download_error", callable(log))

    def note_and_log(failure: Failure, request: Request, *rest: Any, **options: Any) -> Any:
        function(failure, request)
        return log(failure, request, *rest, **options)

    formatter.download_error = note_and_log


def on_unhandled_status(crawler: Crawler, process_spider_exception: Callable[..., None]) -> None:
    """Pass to `process_spider_exception` of a spider middleware each exception, in the callback or
    on the way to it, that reaches HttpErrorMiddleware."""
    methods = _methods(crawler, "engine.scraper.spidermw.methods")
    middleware = _get(httperror, "HttpErrorMiddleware")
    _require("HttpErrorMiddleware", isinstance(middleware, type))
    exceptions = methods["process_spider_exception"]
    place = len(exceptions)
    for number, method in enumerate(exceptions):
        if isinstance(getattr(method, "__self__", None), middleware):
            place = number
    exceptions.insert(place, process_spider_exception)
    # an exception that is handled at this place goes on with the outputs behind the same place
    methods["process_spider_output"].insert(place, None)


def on_download_exception(crawler: Crawler, process_exception: Callable[..., None]) -> None:
    """Pass to `process_exception` of a downloader middleware what no other has handled."""
    methods = _methods(crawler, "engine.downloader.middleware.methods")
    methods["process_exception"].append(process_exception)


class IdleChecks:
    """The results of the signal spider_idle of `crawler`.

    To be made before the spider is open.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._engine: Any = crawler.engine
        self._signals: Any = crawler.signals
        self.has_closed = False
        """True if the engine has closed the spider because it was idle, with any reason."""
        if hasattr(self._engine, "_spider_idle"):
            self._watch()
        else:
            _miss("engine._spider_idle", "a spider with handlers of spider_idle ends no round")

    @property
    def may_give_more(self) -> bool:
        """True if a handler of the project is connected, and the engine has not closed the spider
        because it was idle."""
        handlers = liveReceivers(getAllReceivers(self._signals.sender, signals.spider_idle))
        return not self.has_closed and any(map(_is_foreign, handlers))

    def _watch(self) -> None:
        # exceptions of handlers are only in the answers that the engine gets; in between, signals
        # are sent as ever, since each request sends two
        ask = self._engine._spider_idle

        def ask_and_note() -> None:
            send = self._signals.send_catch_log

            def send_and_note(signal: object, **options: Any) -> list[tuple[Any, Any]]:
                answers: list[tuple[Any, Any]] = send(signal, **options)
                if signal is signals.spider_idle:
                    self._note(answers)
                return answers

            self._signals.send_catch_log = send_and_note
            try:
                ask()
            finally:
                self._signals.send_catch_log = send

        self._engine._spider_idle = ask_and_note

    def _note(self, answers: Iterable[tuple[Any, Any]]) -> None:
        held = any(isinstance(_get(answer, "value"), DontCloseSpider) for _, answer in answers)
        self.has_closed = not held and self._engine.spider_is_idle()


def _is_foreign(handler: object) -> bool:
    module = getattr(handler, "__module__", None) or ""
    return module.partition(".")[0] not in {"scrapy", "scrapy_bloom"}


SLOT_KEY = "download_slot"
"""Meta key: the download slot that a request names, or was sent in."""
SCOPES_KEY = "throttling_scopes"
"""Meta key of https://github.com/scrapy/scrapy/pull/6931: a scope, or several; the first one is our
slot."""


def slot_named(meta: dict[str, Any]) -> Any:
    """Return the download slot that the `meta` of a request names, None without one."""
    scopes = meta.get(SCOPES_KEY)
    if scopes is None or isinstance(scopes, str):
        return meta.get(SLOT_KEY) if scopes is None else scopes
    return next(iter(scopes), "")


def slot_keys(crawler: Crawler) -> Callable[[Request], str]:
    """Return the function that gives the download slot of a request."""
    throttler = getattr(crawler, "throttler", None)
    if throttler is not None:
        return partial(_first_scope, throttler)
    downloader: Any = crawler.engine.downloader
    if hasattr(downloader, "get_slot_key"):
        return downloader.get_slot_key  # type: ignore[no-any-return]
    _miss("Downloader.get_slot_key", "a slot is what the meta of a request names, or its host")
    return lambda request: str(slot_named(request.meta) or urlparse_cached(request).hostname or "")


def _first_scope(throttler: Any, request: Request) -> str:
    meta = request.meta
    before = len(meta)
    throttler.get_scopes_key(request)  # a copied meta has the scopes of another request
    scopes = throttler.get_applied_scopes(request)
    while len(meta) > before:  # what the throttler notes there is not stored
        meta.popitem()
    return scopes[0] if scopes else ""


def slot_loads(crawler: Crawler) -> Callable[[str], float]:
    """Return the function that gives how many requests the downloader has of a slot, or their share
    of as many as it may have."""
    throttler: Any = getattr(crawler, "throttler", None)
    if throttler is not None:
        return throttler.get_scope_load  # type: ignore[no-any-return]
    slots = getattr(crawler.engine.downloader, "slots", None)
    if slots is None:
        _miss("Downloader.slots", "slots take turns, whatever their load")
        slots = {}
    return lambda slot: len(slots[slot].active) if slot in slots else 0


def answer_unsent(crawler: Crawler, slot: str, answer: Callable[[Request], Request | None]) -> None:
    """Give the engine `answer(request)` for each request that waits in the downloader, and that
    it has not sent, as a downloader middleware may; None leaves it there."""
    if getattr(crawler, "throttler", None) is not None:
        return  # there requests wait before they reach the middlewares
    found = (_get(crawler.engine, "downloader", "slots") or {}).get(slot)
    if found is None:
        return
    if not isinstance(_get(found, "queue"), deque):
        _miss("downloader.Slot.queue", "what waits for a slot when its hold begins is still sent")
        return
    waiting = [*found.queue]
    found.queue.clear()
    for request, deferred in waiting:
        again = answer(request)
        if again is None:
            found.queue.append((request, deferred))
        else:
            deferred.callback(again)


def mend_cache(crawler: Crawler) -> bool:
    """Have the HTTP cache of `crawler`, if its storage is Scrapy's in files or a subclass, take an
    entry that a kill has cut short for none. Such an entry lacks `request_body`, which is written
    last. Return False where this release of Scrapy does not tell the path of an entry."""
    storage = None
    with suppress(AttributeError, RuntimeError):  # a script without an engine has none
        storage = getattr(crawler.get_downloader_middleware(HttpCacheMiddleware), "storage", None)
    if not isinstance(storage, FilesystemCacheStorage):
        return True
    path_of = getattr(storage, "_get_request_path", None)
    if not callable(path_of):
        return False
    store, retrieve = storage.store_response, storage.retrieve_response

    def store_response(spider: Spider, request: Request, response: Response) -> None:
        Path(path_of(spider, request), "request_body").unlink(missing_ok=True)
        store(spider, request, response)

    def retrieve_response(spider: Spider, request: Request) -> Response | None:
        folder = Path(path_of(spider, request))
        # a subclass may have files of its own instead
        if (folder / "pickled_meta").exists() and not (folder / "request_body").exists():
            return None
        return retrieve(spider, request)

    vars(storage).update(store_response=store_response, retrieve_response=retrieve_response)
    return True


def is_revalidated(request: Request) -> bool:
    """Return True if HttpCacheMiddleware compares the response to `request` with a cached one."""
    return "cached_response" in request.meta


def backs_off(crawler: Crawler, request: Request, status: int) -> bool:
    """Return True if Scrapy itself keeps requests off the slots of `request` after a response with
    that status, as https://github.com/scrapy/scrapy/pull/6931 does."""
    throttler: Any = getattr(crawler, "throttler", None)
    if throttler is None or not crawler.settings.getbool("BACKOFF_ENABLED", True):
        return False
    with suppress(Exception):  # its interface is not released
        find = _get(throttler, "get_applied_scopes") or throttler.get_resolved_scopes
        scopes = find(request) or ()
        managers = map(throttler.get_scope_manager, [scopes] if isinstance(scopes, str) else scopes)
        found = [_get(each, "triggers_backoff_for_status") for each in managers]
        return any(decides is not None and decides(status) for decides in found)
    return True


def scheduler_of(crawler: Crawler) -> object:
    """Return the scheduler of `crawler`, or None before the crawl starts, and where this release of
    Scrapy hides it."""
    with suppress(RuntimeError):  # Scrapy's own, before there is an engine
        found = _get(crawler.engine, "scheduler")  # public since 2.19, and false when it is empty
        if found is None:
            found = _get(crawler.engine, "_slot", "scheduler")
        if found is None and _get(crawler.engine, "_slot") is not None:
            _miss("engine._slot.scheduler", "holds and early dropping are off")
        return found
    return None


@cache
def slots_take_turns() -> bool:
    """Return how DownloaderAwarePriorityQueue chooses among the slots with the fewest active
    downloads: False for the first by name, as up to Scrapy 2.14, True for the first behind the
    last, and for anything else, with a warning. Found by a queue of four slots, since its code has
    no name for it."""
    order = ""
    with suppress(Exception):
        slots = {"b": SimpleNamespace(active={0}), "c": SimpleNamespace(active=set())}
        downloader = SimpleNamespace(slots=slots, get_slot_key=lambda request: request.meta["slot"])
        crawler: Any = SimpleNamespace(
            settings=BaseSettings(),
            engine=SimpleNamespace(downloader=downloader),
            throttler=SimpleNamespace(
                get_scopes_key=downloader.get_slot_key, get_scope_load=lambda slot: slot == "b"
            ),
        )
        queue = pqueues.DownloaderAwarePriorityQueue(crawler, squeues.FifoMemoryQueue, "")
        for slot in "dcbaabcd":
            queue.push(Request("data:,", meta={"slot": slot}))
        for _ in range(8):
            request = queue.pop()
            order += request.meta["slot"] if request else "-"
    takes_turns = {"aaccddbb": False, "acdacdbb": True}.get(order)
    if takes_turns is None:
        _miss("order of DownloaderAwarePriorityQueue that is known", "slots take turns")
    return takes_turns is not False


def _require(name: str, is_there: bool) -> None:
    if not is_there:
        raise JobDirectoryError(
            f"Scrapy {scrapy.__version__} has no {name}, which DurableScheduler requires: use"
            " another version of Scrapy or of scrapy-bloom, or set SCHEDULER to"
            " 'scrapy.core.scheduler.Scheduler'"
        )


@cache
def _miss(name: str, without: str) -> None:
    """Say, once in a process, what a Scrapy without this name does not get from us."""
    logger.warning("Scrapy %s has no %s: %s", scrapy.__version__, name, without)


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
