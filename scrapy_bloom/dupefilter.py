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

from .errors import JobDirectoryError
from .identity import FingerprinterIdentity
from .scalable import ScalableBloomFilter, stored_identity
from .settings import BloomSettings

if TYPE_CHECKING:
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

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self._settings = BloomSettings()
        self._filter: ScalableBloomFilter | None = None
        self._held: dict[bytes, None] = {}
        self._holding = False
        self._closing = False
        self._fingerprint_failed = False
        self._log_duplicates = True
        self._stats_due = 0.0

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the dupefilter of `crawler`; whatever can fail is left to `open`."""
        return cls(crawler)

    def open(self) -> None:
        """Make or open the filter.

        Logs and raises whatever is wrong: ValueError for a setting, BloomError for
        what is in JOBDIR, OSError or MemoryError if there is no room.
        """
        try:
            self._open()
        except Exception as error:
            logger.error("%s", error, extra={"spider": self._crawler.spider})
            raise

    def close(self, reason: str) -> None:
        """Write the last stats and close the filter. Does nothing if `open` failed."""
        if self._filter is not None:
            self._update_stats()
            self._filter.close()

    def request_seen(self, request: Request) -> bool:
        """Return True if `request` was seen before, else remember it. Never raises."""
        fingerprint = self.fingerprint(request)
        if fingerprint in self._held:
            return True
        try:
            if self._holding:
                if fingerprint in self._filter:  # type: ignore[operator]
                    return True
                self._held[fingerprint] = None
            elif self._filter.add(fingerprint):  # type: ignore[union-attr]
                return True
        except Exception as error:  # noqa: BLE001 - whatever fails below, the crawl goes on
            return self._add_after(error, fingerprint)
        self._after_new()
        return False

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
        try:
            fingerprint = self._crawler.request_fingerprinter.fingerprint(request)
            if type(fingerprint) is bytes:
                return fingerprint
            raise TypeError(f"the fingerprint of {request} is {fingerprint!r}, not bytes")
        except Exception as error:  # noqa: BLE001 - foreign code
            return self._fingerprint_after(error, request)

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
        the next request for it is taken as new."""
        self._held.pop(self.fingerprint(request), None)

    def _open(self) -> None:
        self._settings = settings = BloomSettings.read(self._crawler.settings)
        identity = FingerprinterIdentity.of(self._crawler.request_fingerprinter)
        if settings.job_directory is None:
            self._filter = ScalableBloomFilter(settings.capacity, settings.error_rate)
        else:
            self._filter = self._open_job(settings.job_directory, identity)
        if self._full:
            self._filter.growing = False
        self._update_stats()

    def _open_job(self, job: Path, identity: FingerprinterIdentity) -> ScalableBloomFilter:
        directory = job / "bloom"
        stored = stored_identity(directory)
        if stored is None and (job / "requests.seen").exists():
            raise JobDirectoryError(
                f"{job} holds a requests.seen of Scrapy's RFPDupeFilter and no Bloom filter: what"
                " that job has seen would be fetched again. Finish it with RFPDupeFilter, or use a"
                " new JOBDIR"
            )
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
        if not bloom_filter.clean:
            logger.warning(
                "The job in %(job)s was not stopped cleanly. The filter still knows its"
                " %(items)d requests, but Scrapy's scheduler has lost those that were pending,"
                " and they will not be fetched: to get them too, crawl again with a new JOBDIR.",
                {"job": job, "items": len(bloom_filter)},
                extra={"spider": self._crawler.spider},
            )
        return bloom_filter

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
                " (BLOOM_ON_FULL is 'close'). Set a larger BLOOM_CAPACITY to resume the job.",
                {"capacity": self._settings.capacity},
                extra={"spider": self._crawler.spider},
            )
            self._filter.growing = False  # type: ignore[union-attr]
            self._close_spider("bloom_full")

    def _add_after(self, error: Exception, fingerprint: bytes) -> bool:
        """Answer for a fingerprint that the filter failed on, and close the spider."""
        if not self._closing:
            logger.error(
                "The filter failed: %(error)s. Closing the spider; until then new requests are"
                " remembered as well as can be. Free some space or memory, then resume the job.",
                {"error": error},
                exc_info=error,
                extra={"spider": self._crawler.spider},
            )
            self._close_spider("bloom_error")
        with suppress(Exception):
            # a filter that could not grow still takes keys beyond its capacity
            self._filter.growing = False  # type: ignore[union-attr]
            if not self._holding:
                return self._filter.add(fingerprint)  # type: ignore[union-attr]
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
                {"request": request, "error": error},
                exc_info=error,
                extra={"spider": self._crawler.spider},
            )
        try:
            return scrapy_fingerprint(request)
        except Exception:  # noqa: BLE001 - w3lib raises on some URLs
            return sha1(request.url.encode(errors="surrogatepass"), usedforsecurity=False).digest()

    def _close_spider(self, reason: str) -> None:
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
