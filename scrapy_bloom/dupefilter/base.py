"""The base of the dupefilters: recognises requests that a crawl has seen."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from time import monotonic
from types import MethodType
from typing import TYPE_CHECKING, Any

from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.python import global_object_name
from scrapy.utils.request import referer_str

from ..errors import JobDirectoryError
from ..fingerprints.canonical import CALLBACK, META, META_KEY
from ..fingerprints.recorded import FingerprinterIdentity
from ..fingerprints.safe import UnfailingFingerprinter
from ..scrapy_private import close_spider
from ..settings import AUDIT, DELTA, DELTA_DIGEST, BloomSettings, misspelt, wants_delta
from ..startup import announce, fetches_one_page, has_spider_middleware, is_own_method, refuse
from .overlay import FingerprintFilter, Overlay, closing_line
from .recent import RecentKeys, is_clean
from .redirects import REDIRECT_URLS, RequestChains

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from .audit import Audit

logger = logging.getLogger("scrapy_bloom.dupefilter")

MOST_CALLBACKS = 1_000
"""Callbacks that the cache tells apart; the requests of others need their fingerprints."""
STATS_INTERVAL = 10.0
"""Seconds between updates of the `bloom/…` stats while new requests arrive."""
_NO_DELTA = (
    "%s is %r, but DeltaMiddleware is not enabled: put 'scrapy_bloom.Addon': 300 into"
    " ADDONS, leave its DeltaMiddleware in SPIDER_MIDDLEWARES, or set %s to None"
)


class FilterDupeFilter(BaseDupeFilter):
    """Base of the dupefilters of this package: looks up the fingerprint of a request in a growing
    filter, and never fails.

    Subclasses define the filter, and the answer for a request on which the filter fails.
    """

    _remedy_when_full: str

    _fingerprinter: UnfailingFingerprinter

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._settings = BloomSettings()
        self._overlay: Overlay | None = None
        self._see: Callable[[bytes], bool] = _not_open
        self._fingerprint_of_url: Callable[[str], bytes | None] | None = None
        self._recent: RecentKeys[Any] = RecentKeys(0)
        self.ignores_fragments = False
        """True if URLs that differ in their fragments only are known to be one page."""
        self._reads: frozenset[str] | None = None
        self._reads_callback = False
        self._meta_keys: frozenset[str] = frozenset()
        self._callbacks: dict[object, str] = {}
        self._caches_fingerprints = False
        self._last_request: Request | None = None
        self._last_fingerprint = b""
        self._chains: RequestChains | None = None
        self._audit: Audit | None = None
        self._closing = False
        self._watches_each_new = False
        self._log_duplicates = True
        self._inc_value: Callable[..., None] = crawler.stats.inc_value  # found once: it takes long
        self._stats_due = 0.0

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the dupefilter of `crawler`, with its filter made or opened: `open` is too late,
        since Scrapy's scheduler has changed the job by then.

        Refuses the start, and changes nothing then: ValueError for a setting, BloomError for the
        content of JOBDIR or Redis, OSError or MemoryError if there is no room.
        """
        self = cls(crawler)
        self._start()
        return self

    def open(self) -> None:
        """Write the first stats. The filter has been open since `from_crawler`."""
        for line in misspelt(self._crawler.settings):
            logger.warning("%s", line, extra={"spider": self._crawler.spider})
        self._update_stats()

    def close(self, reason: str) -> None:
        """Write the last stats and close the filter. A second call does nothing."""
        if self._overlay is None:
            return
        self._update_stats()
        finished = reason == "finished"
        line = closing_line(self._overlay.filter, self._settings.capacity, finished=finished)
        self._close_filter()
        logger.info("%s", line, extra={"spider": self._crawler.spider})

    def abandon(self) -> None:
        """Close the filter of a crawl that does not begin, without a log line or stats."""
        self._close_filter()

    def request_seen(self, request: Request) -> bool:
        """Return True if `request` was seen before, else add it. Never raises.

        A URL in the cache, its fragment ignored, needs no fingerprint. Under a fingerprinter of
        others that says what it reads the cache has whole URLs with their callbacks. Where these do
        not decide, it has fingerprints, which need no look into the filter. A redirect is no
        duplicate of the requests that led to it.
        """
        url: Any = None
        fingerprint = None
        try:
            # in line for requests that need nothing else, since calls would double the time, and
            # each duplicate comes here; `fingerprint` is for the others
            if (
                self._fingerprint_of_url is not None
                and request.method == "GET"
                and not request.body
                and not (
                    (meta := request.meta)
                    and ("verbatim_url" in meta or META_KEY in meta or REDIRECT_URLS in meta)
                )
            ):
                whole = url = request.url
                if "#" in whole:
                    url = whole[: whole.index("#")]
                if url in self._recent.urls:
                    return True
                fingerprint = self._fingerprint_of_url(whole)
            elif REDIRECT_URLS not in request.meta:
                if self._reads is not None:
                    meta = request.meta
                    prefix = self.prefix_of(request.callback, request.method, request.body, meta)
                    if prefix is not None:
                        url = prefix + request.url
                        if url in self._recent.urls:
                            return True
                if url is None and self._caches_fingerprints:
                    url = fingerprint = self._fingerprinter.fingerprint(request)
                    if url in self._recent.urls:
                        return True
        except Exception:  # noqa: BLE001 - a request like no other
            url = fingerprint = None
        if fingerprint is not None:
            self._last_request = request
            self._last_fingerprint = fingerprint
        else:
            fingerprint = self._fingerprint_of_any(request)
            if url is not None and (self._fingerprinter.has_substituted or not is_clean(url)):
                url = None
            if self._chains is not None and self._chains.lead_back(request, self.fingerprint):
                self._let_pass(fingerprint)
                return False
        try:
            seen = self._see(fingerprint)
        except Exception as error:  # noqa: BLE001 - whatever fails below, the crawl goes on
            return self._see_despite(error, fingerprint)
        if url is not None:
            self._recent.add(url)
        if seen:
            return True
        if self._watches_each_new or monotonic() >= self._stats_due:
            self._do_what_is_due()
        return False

    def is_known(self, request: Request) -> bool:
        """Return True if a scheduler is sure to drop `request`, now and later, since its URL is in
        the cache. Never raises."""
        try:
            if request.dont_filter:
                return False
            meta = request.meta
            prefix = self.prefix_of(request.callback, request.method, request.body, meta)
            return prefix is not None and self.has_recent(prefix, request.url)
        except Exception:  # noqa: BLE001 - a request like no other
            return False

    def prefix_of(
        self, callback: object, method: str, body: object, meta: Mapping[str, Any]
    ) -> str | None:
        """Return what stands before the URL of such a request in the cache: its callback, if that
        counts. Return None if URL and callback do not decide whether it was seen."""
        if (
            self._reads is None
            or method != "GET"
            or body
            or (meta and not self._meta_keys.isdisjoint(meta))
        ):
            return None
        return self._prefix_of_callback(callback) if self._reads_callback else ""

    def key_of(self, prefix: str, url: str) -> str:
        """Return what stands in the cache for a request with `url`, and with the prefix that
        `prefix_of` returned for it: without a fragment that does not count."""
        if self.ignores_fragments and "#" in url:
            url = url[: url.index("#")]
        return prefix + url

    def has_recent(self, prefix: str, url: str) -> bool:
        """Return True if a request with this prefix and `url` was seen, and is in the cache."""
        return self.key_of(prefix, url) in self._recent.urls

    def why_not_early(self) -> str | None:
        """Return why `is_known` cannot replace `request_seen`, None if it can."""
        if self._audit is not None:
            return "BLOOM_AUDIT is to record them"
        for name in ("request_seen", "fingerprint", "log"):
            if not is_own_method(self, name, "scrapy_bloom"):
                return f"{global_object_name(type(self))} has a changed {name}"
        if self._reads is None:
            return self._fingerprinter.unknown
        if not self._recent.size:
            return "BLOOM_URL_CACHE is 0"
        return None

    def count_filtered(self, count: int) -> None:
        """Add to `dupefilter/filtered` the links to known pages that did not become requests."""
        if count:
            self._inc_value("dupefilter/filtered", count)

    def log(self, request: Request, spider: Spider) -> None:
        """Count a filtered request, and log it as Scrapy does: the first one, or all
        with DUPEFILTER_DEBUG."""
        if self._settings.debug:
            logger.debug(
                "Filtered duplicate request: %(request)s (referer: %(referer)s)",
                {"request": request, "referer": referer_str(request)},
                extra={"spider": spider},
            )
        elif self._log_duplicates:
            self._log_duplicates = False
            logger.debug(
                "Filtered duplicate request: %(request)s - no more duplicates will be shown"
                " (see DUPEFILTER_DEBUG to show all duplicates)",
                {"request": request},
                extra={"spider": spider},
            )
        self._inc_value("dupefilter/filtered")

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint of `request` by the crawler's fingerprinter; if that fails, by
        Scrapy's default one, or as a hash of the raw URL."""
        # a scheduler calls it for the request that `request_seen` has just been called for
        if request is not self._last_request:
            self._last_fingerprint = self._fingerprinter.fingerprint(request)
            self._last_request = request
        return self._last_fingerprint

    @property
    def uncommitted(self) -> Collection[bytes]:
        """The fingerprints that wait for a commit to enter the filter, oldest first."""
        return () if self._overlay is None else self._overlay.uncommitted

    def forget(self, request: Request) -> None:
        """Remove the uncommitted fingerprint of `request`, which could not be stored, so that the
        next request with this fingerprint counts as new."""
        if self._overlay is not None and self._overlay.forget(self.fingerprint(request)):
            self._recent.clear()

    def close_spider(self, reason: str) -> None:
        """Close the spider on the next reactor turn. A close inside `request_seen` could close the
        queue in the middle of a push."""
        if self._closing:
            return
        self._closing = True
        try:
            close_spider(self._crawler, reason)
        except Exception:
            logger.exception("Cannot close the spider with reason %s", reason)

    @abstractmethod
    def _open_filter(
        self, settings: BloomSettings, identity: FingerprinterIdentity
    ) -> FingerprintFilter:
        """Return the open filter of the crawl. Raises the errors of `from_crawler`."""

    def _let_pass(self, fingerprint: bytes) -> None:
        """Do what a redirect needs that passes though it was seen; by default nothing."""

    @abstractmethod
    def _see_despite(self, error: Exception, fingerprint: bytes) -> bool:
        """Return the answer for a fingerprint on which the filter failed. Never raises."""

    def _start(self) -> None:
        crawler = self._crawler
        try:
            # the spider middlewares exist already
            self._settings = settings = BloomSettings.read(crawler.settings)
            self._fingerprinter = UnfailingFingerprinter(crawler)
            if fetches_one_page(crawler):
                self._settings = replace(settings, job=None)
                self._use(self._in_memory("a command for one page touches no job"))
                return
            if wants_delta(crawler.settings) and not has_spider_middleware(
                crawler, "scrapy_bloom.DeltaMiddleware"
            ):
                name = DELTA.name if DELTA.given(crawler.settings) else DELTA_DIGEST.name
                raise ValueError(_NO_DELTA % (name, crawler.settings.get(name), name))
            identity = FingerprinterIdentity.of(crawler.request_fingerprinter)
            self._use(self._open_filter(settings, identity))
        except Exception as error:  # noqa: BLE001 - whatever it is, the crawl must not begin
            self.abandon()
            refuse(crawler, error)

    def _in_memory(self, why: str) -> FingerprintFilter:
        """Return a new filter in memory, and log `why` it is in memory."""
        settings = self._settings
        exactly = "exact, " if settings.exact else ""
        announce(self._crawler, "filter", f"{exactly}in memory ({why})")
        return settings.open_filter(None)

    def _use(self, opened: FingerprintFilter) -> None:
        self._overlay = overlay = Overlay(opened)
        if path := AUDIT.read(self._crawler.settings):
            from .audit import Audit

            known = self.request_seen, self.is_known
            self._audit = Audit(path, *known, overlay, self._fingerprint_of_any)
            vars(self)["request_seen"] = self._audit.request_seen
        self._see = opened.add
        if self._is_full(opened):
            opened.growing = False
        self._watches_each_new = self._settings.on_full == "close"
        self._recent = RecentKeys(self._settings.url_cache)
        if is_own_method(self, "fingerprint", "scrapy_bloom"):
            self._fingerprint_of_url = self._fingerprinter.of_url
            self._reads = self._fingerprinter.reads
            self._caches_fingerprints = (
                self._fingerprint_of_url is None
                and self._recent.size > 0
                and not self._fingerprinter.reads_key
            )
        self.ignores_fragments = self._fingerprint_of_url is not None
        reads = self._reads or frozenset()
        self._reads_callback = CALLBACK in reads
        keys = (word.removeprefix(META) for word in reads if word.startswith(META))
        self._meta_keys = frozenset(keys)
        try:
            self._chains = RequestChains(self._crawler)
        except (JobDirectoryError, RuntimeError) as error:  # in a script there is no engine
            if not self._fingerprinter.is_scrapys:
                raise
            if isinstance(error, JobDirectoryError):
                missing = str(error).partition(", which")[0]
                logger.warning("%s: redirects to a page that led to them are dropped", missing)

    def _prefix_of_callback(self, callback: object) -> str | None:
        """Return a text for `callback`, None unless it is a method of the spider. Never raises."""
        spider = self._crawler.spider
        try:
            if callback is None:
                callback = getattr(spider, "parse", None)
            if type(callback) is not MethodType or callback.__self__ is not spider:
                return None
            function = callback.__func__
            prefix = self._callbacks.get(function)
            if prefix is None and len(self._callbacks) < MOST_CALLBACKS:
                # the function is kept, so that no later one can be taken for it
                prefix = self._callbacks[function] = f"{len(self._callbacks)}:"
        except Exception:  # noqa: BLE001 - a callback like no other
            return None
        return prefix

    def _close_filter(self) -> None:
        """Close the audit and the filter, and drop all references to the crawl's requests."""
        self._last_request = None
        self._recent.clear()
        self._callbacks.clear()
        if self._audit is not None:
            self._audit.close()
        overlay, self._overlay, self._see = self._overlay, None, _not_open
        if overlay is not None:
            overlay.close()

    def _add_unchecked(self, overlay: Overlay, fingerprint: bytes) -> None:
        """Add to the overlay a fingerprint that the filter did not accept."""
        overlay.add_unchecked(fingerprint)
        if self._see == overlay.filter.add:
            self._see = overlay.add

    def _fingerprint_of_any(self, request: Request) -> bytes:
        """Return the fingerprint of a request that is not plain."""
        if self._chains is not None and self._fingerprinter.reads_key:
            self._chains.drop_copied_key(request)
        return self.fingerprint(request)

    def _do_what_is_due(self) -> None:
        """Update the stats if it is time; close the spider if the filter is full."""
        if monotonic() >= self._stats_due:
            self._update_stats()
        self._close_if_full()

    def _is_full(self, known: FingerprintFilter) -> bool:
        return self._settings.on_full == "close" and len(known) >= self._settings.capacity

    def _close_if_full(self) -> None:
        if self._closing or self._overlay is None or not self._is_full(self._overlay.filter):
            return
        logger.error(
            "The filter holds the %(capacity)d requests of BLOOM_CAPACITY: closing the spider"
            " (BLOOM_ON_FULL is 'close'). %(remedy)s.",
            {"capacity": self._settings.capacity, "remedy": self._remedy_when_full},
            extra={"spider": self._crawler.spider},
        )
        self._overlay.filter.growing = False
        self.close_spider("bloom_full")

    def _update_stats(self) -> None:
        self._stats_due = monotonic() + STATS_INTERVAL
        if self._overlay is None:
            return
        try:
            for name, value in self._overlay.stats().items():
                self._crawler.stats.set_value(f"bloom/{name}", value)
        except Exception:
            logger.exception("Cannot update the stats of the filter")


def _not_open(fingerprint: bytes) -> bool:
    raise ValueError("the dupefilter is not open")
