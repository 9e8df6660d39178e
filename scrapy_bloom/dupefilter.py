"""The Scrapy component: which requests were seen, in a Bloom filter in JOBDIR."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from hashlib import sha1
from time import monotonic
from typing import TYPE_CHECKING

from scrapy.dupefilters import BaseDupeFilter
from scrapy.utils.asyncio import call_later
from scrapy.utils.defer import deferred_from_coro
from scrapy.utils.request import fingerprint as scrapy_fingerprint
from scrapy.utils.request import referer_str

from .bloom.growing import ScalableBloomFilter, stored_identity
from .durable.request_file import has_requests
from .errors import describe
from .fingerprints.canonical import fast_ways
from .fingerprints.identity import FingerprinterIdentity
from .migration.clean_stop import keep_unclean
from .migration.sources import has_only_seen, import_job
from .recent import RecentUrls, is_clean
from .reporting import closing_line
from .settings import BloomSettings, job_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

logger = logging.getLogger(__name__)

STATS_INTERVAL = 10.0
"""Seconds between refreshments of the `bloom/…` stats while new requests arrive."""


class BloomDupeFilter(BaseDupeFilter):
    """Duplicate filter for DUPEFILTER_CLASS that keeps the fingerprints of requests
    in a growing Bloom filter, in memory or, with JOBDIR, in `JOBDIR/bloom`.

    A request that was seen is always recognised; a new one is taken for a seen one
    with a chance of at most BLOOM_ERROR_RATE, however many there are. `request_seen`
    never raises: if the filter fails it goes on in memory and closes the spider with
    reason `bloom_error`.

    A scheduler that stores requests durably can `hold_back` new fingerprints, and
    `release` them into the filter when their requests are safe: a bit that is set
    too early loses a page in a crash, a bit that is missing only repeats one.
    """

    durable = False
    """True for a scheduler that still has the requests of a job stopped uncleanly."""
    can_hold_back = True
    """Whether it goes with a scheduler that stores requests durably."""

    _remedy_when_full = "Set a larger BLOOM_CAPACITY to resume the job"

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._settings = BloomSettings()
        self._filter: ScalableBloomFilter | None = None
        self._fast_fingerprint: Callable[[Request], bytes] | None = None
        self._fingerprint_of_url: Callable[[str], bytes | None] | None = None
        self._recent = RecentUrls(0)
        self._recent_urls = self._recent.urls
        self._last_request: Request | None = None
        self._last_fingerprint = b""
        self._held: dict[bytes, None] = {}
        self._holding = False
        self._unclean: str | None = "nobody looked before the scheduler opened it"
        self._closing = False
        self._limited = False
        self._fingerprint_failed = False
        self._log_duplicates = True
        self._stats_due = 0.0

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the dupefilter of `crawler`; whatever can fail is left to `open`."""
        self = cls(crawler)
        # when `open` is called, Scrapy's scheduler has changed the job already
        job = job_directory(crawler.settings)
        if job is not None and has_only_seen(job):
            self._unclean = keep_unclean(job)
        return self

    def open(self) -> None:
        """Make or open the filter.

        Logs and raises whatever is wrong: ValueError for a setting, BloomError for
        what is in JOBDIR, OSError or MemoryError if there is no room.
        """
        try:
            self._open()
        except Exception as error:
            if self._filter is not None:
                self._filter.close()
                self._filter = None
            logger.error("%s", describe(error), extra={"spider": self._crawler.spider})
            raise

    def close(self, reason: str) -> None:
        """Write the last stats and close the filter. Does nothing if `open` failed."""
        self._last_request = None
        self._recent.clear()
        if self._filter is not None:
            try:
                self._update_stats()
            finally:
                self._filter.close()
            line = closing_line(
                self._filter, self._settings.capacity, finished=reason == "finished"
            )
            logger.info("%s", line, extra={"spider": self._crawler.spider})

    def request_seen(self, request: Request) -> bool:
        """Return True if `request` was seen before, else remember it. Never raises.

        Cost: 0.3 µs for a URL that is among the recent ones, whatever its fragment;
        3 µs for a new one (7 µs if only w3lib can make it canonical).
        """
        url = fingerprint = None
        try:
            # all in line for the requests that crawls are made of, because calls would
            # take as long as what they do; the others are left to `fingerprint`
            if (
                self._fingerprint_of_url is not None
                and request.method == "GET"
                and not request.body
                and not (
                    (meta := request.meta)
                    and ("verbatim_url" in meta or "bloom_fingerprint" in meta)
                )
            ):
                whole = url = request.url
                if "#" in whole:
                    url = whole[: whole.index("#")]
                if url in self._recent_urls:
                    return True
                fingerprint = self._fingerprint_of_url(whole)
        except Exception:  # noqa: BLE001 - a request like no other
            url = fingerprint = None
        if fingerprint is not None:
            self._last_request = request
            self._last_fingerprint = fingerprint
        else:
            fingerprint = self.fingerprint(request)
            if url is not None and not is_clean(url):
                url = None
        try:
            if fingerprint in self._held:
                seen = True
            elif not self._holding:
                seen = self._filter.add(fingerprint)  # type: ignore[union-attr]
            else:
                seen = fingerprint in self._filter  # type: ignore[operator]
                if not seen:
                    self._held[fingerprint] = None
        except Exception as error:  # noqa: BLE001 - whatever fails below, the crawl goes on
            return self._add_after(error, fingerprint)
        if url is not None:
            self._recent.add(url)
        if not seen and (self._limited or monotonic() >= self._stats_due):
            self._after_new()
        return seen

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
        self._crawler.stats.inc_value("dupefilter/filtered")

    def fingerprint(self, request: Request) -> bytes:
        """Return the bytes that stand for `request`: the crawler's fingerprinter's,
        or, if that fails, Scrapy's default one's, or a hash of the raw URL."""
        # a scheduler asks again for what `request_seen` has just worked out
        if request is not self._last_request:
            self._last_fingerprint = self._fingerprint(request)
            self._last_request = request
        return self._last_fingerprint

    def hold_back(self) -> None:
        """From now on keep new fingerprints in memory until they are released.

        Held ones count as seen. What is never released is never written, at close
        either.
        """
        self._holding = True

    @property
    def held(self) -> Collection[bytes]:
        """The fingerprints held back, oldest first."""
        return self._held.keys()

    def release(self, fingerprints: Iterable[bytes]) -> None:
        """Move `fingerprints` from memory into the filter. Never raises."""
        for fingerprint in list(fingerprints):
            if self._release(fingerprint):
                self._held.pop(fingerprint, None)
        self._close_if_full()

    def forget(self, request: Request) -> None:
        """Drop the held fingerprint of `request`, which could not be stored, so that
        the next request for it is taken as new, however its URL is written."""
        fingerprint = self.fingerprint(request)
        if fingerprint in self._held:
            del self._held[fingerprint]
            self._recent.clear()

    def _open(self) -> None:
        self._settings = settings = BloomSettings.read(self._crawler.settings)
        fingerprinter = self._crawler.request_fingerprinter
        identity = FingerprinterIdentity.of(fingerprinter)
        self._filter = self._open_filter(identity)
        if self._full:
            self._filter.growing = False
        self._limited = settings.on_full == "close"
        self._recent = RecentUrls(settings.recent_urls)
        self._recent_urls = self._recent.urls
        if _own_method(self, "fingerprint"):
            self._fast_fingerprint, self._fingerprint_of_url = fast_ways(fingerprinter)
        self._update_stats()

    def _open_filter(self, identity: FingerprinterIdentity) -> ScalableBloomFilter:
        if self._settings.job_directory is None:
            return ScalableBloomFilter(self._settings.capacity, self._settings.error_rate)
        return self._open_job(self._settings.job_directory, identity)

    def _open_job(self, job: Path, identity: FingerprinterIdentity) -> ScalableBloomFilter:
        if not self.durable and has_requests(job / "requests.sqlite"):
            logger.warning(
                "%(job)s holds requests of DurableScheduler, which another scheduler does not"
                " fetch: set SCHEDULER to 'scrapy_bloom.DurableScheduler' to get them.",
                {"job": job},
                extra={"spider": self._crawler.spider},
            )
        directory = job / "bloom"
        stored = stored_identity(directory)
        if has_only_seen(job):
            imported = import_job(
                job,
                self._unclean,
                self._settings.capacity,
                self._settings.error_rate,
                identity.to_text(),
            )
            logger.info("%s", imported, extra={"spider": self._crawler.spider})
        if stored:
            then = FingerprinterIdentity.from_text(stored)
            if warning := then.require_same(identity, str(directory)):
                logger.warning("%s", warning, extra={"spider": self._crawler.spider})
        bloom_filter = ScalableBloomFilter(
            self._settings.capacity,
            self._settings.error_rate,
            directory,
            identity=identity.to_text(),
        )
        if not bloom_filter.clean and not self.durable:
            logger.warning(
                "The job in %(job)s was not stopped cleanly. The filter still knows its"
                " %(items)d requests, but Scrapy's scheduler has lost those that were pending,"
                " and they will not be fetched: to get them too, crawl again with a new JOBDIR.",
                {"job": job, "items": len(bloom_filter)},
                extra={"spider": self._crawler.spider},
            )
        return bloom_filter

    def _fingerprint(self, request: Request) -> bytes:
        try:
            way = self._fast_fingerprint or self._crawler.request_fingerprinter.fingerprint
            fingerprint = way(request)
            if type(fingerprint) is bytes:
                return fingerprint
            raise TypeError(f"the fingerprint of {request} is {fingerprint!r}, not bytes")
        except Exception as error:  # noqa: BLE001 - foreign code
            return self._fingerprint_after(error, request)

    def _release(self, fingerprint: bytes) -> bool:
        """Return True if `fingerprint` is in the filter now."""
        try:
            self._filter.add(fingerprint)  # type: ignore[union-attr]
        except Exception as error:  # noqa: BLE001 - see request_seen
            self._add_after(error, fingerprint)
            return False
        return True

    @property
    def _full(self) -> bool:
        return self._settings.on_full == "close" and len(self._filter) >= self._settings.capacity  # type: ignore[arg-type]

    def _after_new(self) -> None:
        if monotonic() >= self._stats_due:
            try:
                self._update_stats()
            except Exception:
                logger.exception("Cannot update the stats of the filter")
        self._close_if_full()

    def _close_if_full(self) -> None:
        if not self._closing and self._full:
            logger.error(
                "The filter holds the %(capacity)d requests of BLOOM_CAPACITY: closing the spider"
                " (BLOOM_ON_FULL is 'close'). %(remedy)s.",
                {"capacity": self._settings.capacity, "remedy": self._remedy_when_full},
                extra={"spider": self._crawler.spider},
            )
            self._filter.growing = False  # type: ignore[union-attr]
            self.close_spider("bloom_full")

    def _add_after(self, error: Exception, fingerprint: bytes) -> bool:
        """Answer for a fingerprint that the filter failed on, and close the spider."""
        if not self._closing:
            logger.error(
                "The filter failed: %(error)s. Closing the spider; until then new requests are"
                " remembered as well as can be. Free some space or memory, then resume the job.",
                {"error": describe(error)},
                exc_info=error,
                extra={"spider": self._crawler.spider},
            )
            self.close_spider("bloom_error")
        with suppress(Exception):
            if fingerprint in self._filter:  # type: ignore[operator]
                return True
            # a filter that could not grow still takes keys beyond its capacity
            self._filter.growing = False  # type: ignore[union-attr]
            if not self._holding:
                self._filter.add(fingerprint)  # type: ignore[union-attr]
                return False
        self._held[fingerprint] = None
        return False

    def _fingerprint_after(self, error: Exception, request: Request) -> bytes:
        """Return another fingerprint for a request that the fingerprinter failed on."""
        with suppress(Exception):
            self._crawler.stats.inc_value("bloom/fingerprint_errors")
        if not self._fingerprint_failed:
            self._fingerprint_failed = True
            logger.error(
                "The fingerprinter failed on %(request)s: %(error)s. Scrapy's default fingerprint"
                " is used for such requests; no more of them will be shown (see the stat"
                " bloom/fingerprint_errors).",
                {"request": request, "error": describe(error)},
                exc_info=error,
                extra={"spider": self._crawler.spider},
            )
        try:
            return scrapy_fingerprint(request)
        except Exception:  # noqa: BLE001 - w3lib raises on some URLs
            url = str(request.url)
            return sha1(url.encode(errors="surrogatepass"), usedforsecurity=False).digest()

    def close_spider(self, reason: str) -> None:
        """Close the spider on the next reactor turn: inside `request_seen` it could
        close the queue under the request that is being pushed."""
        if self._closing:
            return
        self._closing = True
        try:
            call_later(0, self._close_spider_now, reason)
        except Exception:
            logger.exception("Cannot close the spider with reason %s", reason)

    def _close_spider_now(self, reason: str) -> None:
        closed = deferred_from_coro(self._crawler.engine.close_spider_async(reason=reason))
        closed.addErrback(
            lambda failure: logger.debug("The spider was closed already: %s", failure)
        )

    def _update_stats(self) -> None:
        self._stats_due = monotonic() + STATS_INTERVAL
        stats = self._crawler.stats
        bloom_filter = self._filter
        assert bloom_filter is not None
        stats.set_value("bloom/items", len(bloom_filter) + len(self._held))
        stats.set_value("bloom/layers", len(bloom_filter.layers))
        stats.set_value("bloom/bytes", bloom_filter.nbytes)
        stats.set_value("bloom/fill_ratio", bloom_filter.fill_ratio)
        stats.set_value("bloom/error_rate", bloom_filter.current_error_rate)
        stats.set_value("bloom/expected_false_positives", bloom_filter.expected_false_positives)


def _own_method(dupefilter: BloomDupeFilter, name: str) -> bool:
    """Return True if no subclass has overridden that method, nor the object itself."""
    return name not in vars(dupefilter) and (
        getattr(type(dupefilter), name) is getattr(BloomDupeFilter, name)
    )
