"""Connects the delta store to Scrapy: skips requests for done pages, and marks pages."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from scrapy import Request, signals
from scrapy.exceptions import NotConfigured
from scrapy.extensions.feedexport import FeedExporter
from scrapy.http import Response

from ..amounts import DAY, counted, in_bytes
from ..crawl.failed_request import item_refused
from ..crawl.origins import origins_of
from ..early.links import has_left_out
from ..errors import BloomError, SharedFilterError, message_of, unforeseen
from ..fingerprints import FingerprinterIdentity
from ..jobdir import feeds_of
from ..redis.settings import RedisSettings
from ..scrapy_private.middlewares import OutputFilter, put_before_engine
from ..scrapy_private.progress import scheduler_of
from ..settings import BloomSettings
from ..sqlite.rounds import round_opened
from ..startup import announce, fetches_one_page, is_component, refuse
from .crawl import DeltaCrawl
from .file_store import FileDeltaStore, ForeignFileError, UnfinishedWriteError
from .marks import CHANGED, NEW, UNCHANGED
from .settings import DELTA_DIGEST, DeltaSettings, Lifetime
from .skipping import Skipping

if TYPE_CHECKING:
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from .pages import Outcome
    from .redis_store import RedisDeltaStore

logger = logging.getLogger(__name__)


class _Watch(OutputFilter):
    """Spider middleware that records which pages are index pages. Next to the engine it sees the
    requests of other middlewares, too."""

    def __init__(self, outcome_of: Callable[[Response], Outcome | None]) -> None:
        self._outcome_of = outcome_of

    def _skips(self, request: Request, response: Response) -> bool:
        if (outcome := self._outcome_of(response)) is not None:
            outcome.leads_to(request, response)
        return False


class DeltaMiddleware(_Watch):
    """Spider middleware, next to the spider, that drops requests of callbacks for pages that an
    earlier round has done according to BLOOM_DELTA, and marks the pages of this round. The add-on
    enables it.

    A failure costs repetitions: the first is logged, and no request is dropped for a minute.
    """

    order = 1101
    """Its place in SPIDER_MIDDLEWARES: nearer to the spider than DropEarlyMiddleware, since
    duplicates make a page an index page, too."""

    clock = staticmethod(time.time)

    def __init__(self, crawler: Crawler, settings: DeltaSettings) -> None:
        super().__init__(self.outcome_of)
        self._crawler = crawler
        self._settings = settings
        self._origins = origins_of(crawler)
        self._delta: DeltaCrawl | None = None
        self.skipping: Skipping | None = None
        """What knows the pages of earlier rounds, None before the spider is open."""
        self._skipped = 0
        self._is_open = False
        self._is_unfinished = False
        """True if the delta store could not be read yet, since a writer of it was killed."""
        self._awaited = {signals.spider_closed}
        if crawler.get_extension(FeedExporter) is not None:
            self._awaited.add(signals.feed_exporter_closed)

        general = BloomSettings.read(crawler.settings)
        self._identity = FingerprinterIdentity.of(crawler.request_fingerprinter)
        self._url_cache = general.url_cache
        self._logs_all = crawler.settings.getbool("DUPEFILTER_DEBUG")
        self._logger = logging.LoggerAdapter(logger, {"spider": crawler.spider})
        self._store = self._store_of(Lifetime(settings.period, self._identity.to_text()))
        if isinstance(self._store, FileDeltaStore) and not settings.read_only:
            self._store.require_writable()
        self._check()

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the middleware of `crawler`. Raises NotConfigured without BLOOM_DELTA, and in
        commands for one page. Refuses the start: ValueError for a setting, BloomError or OSError
        for the delta store."""
        try:
            if fetches_one_page(crawler):
                raise NotConfigured
            assert crawler.spider is not None
            settings = DeltaSettings.read(crawler.settings, crawler.spider.name)
            if settings is None:
                raise NotConfigured
            if settings.digest is not None and settings.digest.skips:
                _require_durable_feeds(crawler)
            self = cls(crawler, settings)
        except NotConfigured:  # of a subclass, too
            raise
        except Exception as error:  # noqa: BLE001 - whatever it is, the crawl must not begin
            refuse(crawler, error)
        announce(crawler, "between crawls", settings.mode or "compared")
        for signal, handler in (
            (round_opened, self._open),
            (signals.spider_opened, self._open),  # without DurableScheduler
            (signals.request_scheduled, self._request_scheduled),
            (signals.item_scraped, self._item_scraped),
            (signals.item_error, self._page_failed),
            (item_refused, self._page_failed),
            (signals.spider_error, self._page_failed),
            (signals.spider_closed, self._closed),
            (signals.feed_exporter_closed, self._closed),
        ):
            crawler.signals.connect(handler, signal)
        return self

    # -- responses and what callbacks make of them ---------------------------------------

    def process_spider_input(self, response: Response) -> None:
        """Record that `response` reaches the callback."""
        origin = self._origins.get(response)
        if self._delta is not None and origin is not None:
            self._delta.begin(origin, response)

    def outcome_of(self, response: Any) -> Outcome | None:
        """Return the outcome of the request that `response` answers, None before its callback, and
        for the failure of an errback."""
        if self._delta is None or not isinstance(response, Response):
            return None
        return self._delta.pages.outcome(self._origins.get(response))

    def _complete(self, response: Response) -> None:
        if (outcome := self.outcome_of(response)) is not None:
            outcome.is_complete = True
            outcome.is_index_page |= has_left_out(response)

    def _skips(self, request: Request, response: Response) -> bool:
        """Return True if `request`, of the callback of `response`, is for a page that an earlier
        round has done; count it then, and send `request_dropped`."""
        super()._skips(request, response)
        if self.skipping is None or not self.skipping.is_done(request, response):
            return False
        crawler = self._crawler
        self._skipped += 1
        crawler.stats.inc_value("bloom/delta_skipped")
        if self._skipped == 1 or self._logs_all:
            last = " - no more such requests will be shown (see DUPEFILTER_DEBUG to show all)"
            rest = "" if self._logs_all else last
            self._logger.debug("Skipped, since an earlier crawl has done it: %s%s", request, rest)
        crawler.signals.send_catch_log(
            signals.request_dropped, request=request, spider=crawler.spider
        )
        return True

    # -- signals -------------------------------------------------------------------------

    def _open(self) -> None:
        if self._is_open:
            return
        crawler, self._is_open = self._crawler, True
        try:
            if self._is_unfinished:
                self._store.open()
                self._require_fingerprinter()
            delta = DeltaCrawl(crawler, self._settings, self._store)
        except Exception as error:
            ledger = getattr(scheduler_of(crawler), "ledger", None)
            named = error if ledger is None else ledger.named(error)
            self._logger.error(
                "BLOOM_DELTA is off in this crawl: %s",
                message_of(named),
                exc_info=unforeseen(error),
            )
            announce(crawler, "between crawls", "off, see the error above")
            return
        self._delta = delta
        put_before_engine(crawler, _Watch(self.outcome_of))
        self.skipping = Skipping(crawler, delta.pages, self._url_cache)
        delta.on_round.append(self.skipping.forget)
        crawler.stats.set_value("bloom/delta_skipped", 0)
        settings = self._settings
        period, digest = settings.period, settings.digest
        days = "for ever" if period is None else f"for {period / DAY:g} days"
        how = ["all fetched" if settings.mode is None else f"{settings.mode} {days}"]
        if digest is not None:
            how += ["compared, items of unchanged pages left out" if digest.skips else "compared"]
        how += ["read-only"] if settings.read_only else []
        if settings.conditional:
            how += ["conditional, feeds lack the items of unmodified pages"]
        try:
            self._update_stats(delta)
            how += [f"{self._store.name} with {self._store.holds}"]
        except SharedFilterError:
            how += [f"{self._store.name} cannot be reached"]
        announce(crawler, "between crawls", ", ".join(how))

    def _request_scheduled(self, request: Request) -> None:
        if self._delta is not None and request.meta:
            self._delta.pages.scheduled(request)

    def _item_scraped(self, item: Any, response: Any) -> None:
        if (outcome := self.outcome_of(response)) is not None:
            assert self._delta is not None
            outcome.items += 1
            if (digests := self._delta.pages.digests) is not None:
                outcome.hash = digests.add(outcome.hash, item, response)

    def _page_failed(self, response: Any) -> None:
        if (outcome := self.outcome_of(response)) is not None:
            outcome.has_failed = True

    def _closed(self, signal: object) -> None:
        """Report when the spider is closed; close the delta store when its feeds are, too."""
        if (delta := self._delta) is None:
            return
        try:
            if signal is signals.spider_closed:
                delta.ended()
                self._report(delta)
        finally:
            self._awaited.discard(signal)
            if not self._awaited:
                delta.stopped()

    def _report(self, delta: DeltaCrawl) -> None:
        store = self._store
        try:
            self._update_stats(delta)
            holds = f"{store.name} had {store.holds}"
            if store.oldest is not None:
                begun = time.strftime("%Y-%m-%d %H:%M", time.localtime(store.oldest))
                holds += f", {in_bytes(store.nbytes)}, the oldest from {begun}"
        except SharedFilterError:
            holds = f"{store.name} cannot be reached"
        self._logger.info(
            "Between crawls: skipped %s that earlier crawls have done; marked %s for the next"
            " ones. %s.",
            counted(self._skipped, "request"),
            counted(delta.pages.marked, "page"),
            holds,
        )
        if self._settings.digest is not None:
            verdicts = delta.marks.verdicts
            skips = "; feeds have no items of unchanged ones" * self._settings.digest.skips
            self._logger.info(
                "Between crawls: compared %s: %d new, %d changed, %d unchanged%s.",
                counted(verdicts.total(), "page"),
                *(verdicts[verdict] for verdict in (NEW, CHANGED, UNCHANGED)),
                skips,
            )

    def _update_stats(self, delta: DeltaCrawl) -> None:
        stats, store = self._crawler.stats, self._store
        stats.set_value("bloom/delta_marked", delta.pages.marked)
        stats.set_value("bloom/delta_bytes", store.nbytes)
        if store.oldest is not None:
            stats.set_value("bloom/delta_oldest_days", (self.clock() - store.oldest) / DAY)

    # ------------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raise BloomError unless this crawl can use the delta store."""
        try:
            self._store.look()
        except BloomError as error:
            if self._settings.reset and not isinstance(error, ForeignFileError):
                return
            if self._settings.read_only or not isinstance(error, UnfinishedWriteError):
                raise
            self._is_unfinished = True  # the crawl rolls that back when it begins
            return
        if not self._settings.reset:
            self._require_fingerprinter()

    def _require_fingerprinter(self) -> None:
        store = self._store
        fresh = "a new BLOOM_DELTA_DIR, or start afresh with BLOOM_DELTA_RESET = True"
        self._identity.require_same(store.identity, store.name, fresh)

    def _store_of(self, lifetime: Lifetime) -> FileDeltaStore | RedisDeltaStore:
        """Return the delta store: in Redis with a shared filter, else in its directory."""
        settings, spider = self._crawler.settings, self._crawler.spider
        if not is_component(settings["DUPEFILTER_CLASS"], "RedisBloomDupeFilter"):
            return FileDeltaStore(self._settings.directory, lifetime, self.clock)
        from .redis_store import RedisDeltaStore

        assert spider is not None
        redis = RedisSettings.read(settings, spider.name)
        where = redis.url, self._settings.name, lifetime, redis.timeout, self.clock
        return RedisDeltaStore(*where, waits=True)


def _require_durable_feeds(crawler: Crawler) -> None:
    """Raise ValueError unless there are feeds that items can be left out of."""
    settings = crawler.settings
    needed = {
        "JOBDIR": settings.get("JOBDIR"),
        "scrapy-bloom's SCHEDULER": is_component(settings["SCHEDULER"], "LedgerScheduler"),
        "FEEDS with DurableFeedExporter": feeds_of(crawler),
    }
    if missing := [text for text, found in needed.items() if not found]:
        raise ValueError(
            f"BLOOM_DELTA_DIGEST is {settings.get(DELTA_DIGEST.name)!r}, which leaves items out of"
            f" durable feeds, and there is no {' and no '.join(missing)}: add that, or say True"
            " or which fields to leave out"
        )
