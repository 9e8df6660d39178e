"""The dupefilter: recognises requests that a crawl has seen."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any

from scrapy.dupefilters import BaseDupeFilter, RFPDupeFilter

from .amounts import counted
from .bloom import stored_identity
from .errors import message_of, unforeseen
from .fingerprints import FingerprinterIdentity, UnfailingFingerprinter
from .jobdir import session_of
from .seen import Seen, closing_line
from .settings import OFF, BloomSettings, misspelt
from .startup import announce, close_spider, fetches_one_page, is_own_method, refuse

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from .bloom.layers import Layered
    from .jobdir import JobDirectory

logger = logging.getLogger(__name__)

STATS_INTERVAL = 10.0
"""Seconds between updates of the `bloom/…` stats while new requests arrive."""
PARTS = {
    "scrapy_bloom.full": ("BLOOM_ON_FULL",),
    "scrapy_bloom.delta.settings": ("BLOOM_DELTA", "BLOOM_DELTA_DIGEST"),
    "scrapy_bloom.fingerprints.canonical": ("REQUEST_FINGERPRINTER_CLASS",),
    "scrapy_bloom.redirects": ("ADDONS", "REQUEST_FINGERPRINTER_CLASS", "SCHEDULER"),
    "scrapy_bloom.speed": (),
    "scrapy_bloom.audit": ("BLOOM_AUDIT",),
    "scrapy_bloom.metrics": ("BLOOM_METRICS",),
}
"""What plugs into a dupefilter, in this order, by module, with the settings that ask for it where
the project or the add-on has set one; without any it is always there. What it has is called:
`check(crawler)`, which may refuse the start; `attach(dupefilter)`, when the filter is open."""


class FilterDupeFilter(BaseDupeFilter):
    """Base of the dupefilters of this package: looks up the fingerprint of a request in a growing
    filter, and never fails.

    Subclasses define the filter, and the answer for a request on which the filter fails.
    """

    # what RFPDupeFilter.log reads
    debug, logdupes, logger = False, True, logger

    def __init__(self, crawler: Crawler) -> None:
        self.crawler = crawler
        self._settings = BloomSettings()
        self._job: JobDirectory | None = None
        self._identity: FingerprinterIdentity
        self._fingerprinter: UnfailingFingerprinter
        self._seen: Seen | None = None
        self._see: Callable[[bytes], bool] = _not_open
        self._recent: Any = None
        """The URLs seen last, which speed up `request_seen`."""
        self._known: Any = None
        """What they say, where fingerprints are another's."""
        self._audit: Any = None
        self._metrics: Any = None
        self.last_request: Request | None = None
        self.last_fingerprint = b""
        self.watches_each_new = False
        self.stats_due = 0.0
        self._closing = False

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
        for line in misspelt(self.crawler.settings):
            logger.warning("%s", line, extra={"spider": self.crawler.spider})
        self._update_stats()

    def request_seen(self, request: Request) -> bool:
        """Return True if `request` was seen before, else add it. Never raises."""
        return self._ask(request)  # `look_up`, or what a part has put in front of it

    def look_up(self, request: Request) -> bool:
        """Answer by the fingerprint of `request`, and add it: `request_seen` for what no part
        answers itself."""
        return self.see(self.fingerprint_of_any(request))

    def see(self, fingerprint: bytes) -> bool:
        """Return True if `fingerprint` was seen before, else add it. Never raises."""
        try:
            seen = self._see(fingerprint)
        except Exception as error:  # noqa: BLE001 - whatever fails below, the crawl goes on
            return self.see_despite(error, fingerprint)
        if not seen and (self.watches_each_new or monotonic() >= self.stats_due):
            self.do_what_is_due()
        return seen

    _ask = look_up

    def fingerprint(self, request: Request) -> bytes:
        """Return the fingerprint of `request` by the crawler's fingerprinter; if that fails, by
        Scrapy's default one, or as a hash of the raw URL."""
        # a scheduler calls it for the request that `request_seen` has just been called for
        if request is not self.last_request:
            self.last_fingerprint = self._fingerprinter.fingerprint(request)
            self.last_request = request
        return self.last_fingerprint

    def log(self, request: Request, spider: Spider) -> None:
        """Count a filtered request; log the first, or all with DUPEFILTER_DEBUG, as Scrapy does."""
        RFPDupeFilter.log(self, request, spider)  # type: ignore[arg-type]

    def close(self, reason: str) -> None:
        """Write the last stats and close the filter. A second call does nothing."""
        if self._seen is None:
            return
        self._update_stats()
        line = closing_line(self._seen.filter, self._settings.capacity)
        self._close_filter()
        logger.info("%s", line, extra={"spider": self.crawler.spider})

    def abandon(self) -> None:
        """Close the filter of a start that `refuse` ends, without a log line, stats or an error."""
        with suppress(Exception):
            self._close_filter()

    # for the schedulers, `speed` and the optional parts

    @property
    def filter(self) -> Layered:
        """The filter, without fingerprints in memory. Raises ValueError if it is not open."""
        if self._seen is None:
            raise ValueError("the dupefilter is not open")
        return self._seen.filter

    def fingerprint_of_any(self, request: Request) -> bytes:
        """Return the fingerprint of a request whose meta may be a copy, or have changed since."""
        self.last_request = None
        return self.fingerprint(request)

    def use(self, seen: Seen) -> None:
        """Ask `seen` from now on."""
        self._seen, self._see = seen, seen.add

    def confirm_recent(self) -> None:
        """Clear `recent` if its answers may no longer be those of the filter."""

    def let_pass(self, fingerprint: bytes) -> None:
        """Do what a redirect needs that passes though it was seen; by default nothing."""

    @abstractmethod
    def see_despite(self, error: Exception, fingerprint: bytes) -> bool:
        """Return the answer for a fingerprint on which the filter failed. Never raises."""

    def do_what_is_due(self) -> None:
        """Update the stats if it is time; close the spider if the filter is full."""
        if monotonic() >= self.stats_due:
            self._update_stats()
        self.close_if_full()

    def close_if_full(self) -> None:
        """Close the spider where the filter is full and must not grow; by default nothing."""

    def close_spider(self, reason: str) -> None:
        """Close the spider on the next reactor turn. A close inside `request_seen` could close the
        queue in the middle of a push."""
        if self._closing:
            return
        self._closing = True
        try:
            close_spider(self.crawler, reason)
        except Exception:
            logger.exception("Cannot close the spider with reason %s", reason)

    def _start(self) -> None:
        crawler, settings = self.crawler, self.crawler.settings

        def is_on(name: str) -> bool:
            if name.startswith("BLOOM_"):  # its part knows what is off
                return settings[name] is not None
            return bool(settings.getpriority(name)) and settings[name] not in OFF

        try:
            self._settings = BloomSettings.read(settings)
            self.debug = settings.getbool("DUPEFILTER_DEBUG")
            self._fingerprinter = UnfailingFingerprinter(crawler)
            parts = [
                import_module(module)
                for module, names in PARTS.items()
                if not names or any(map(is_on, names))
            ]
            if fetches_one_page(crawler):
                self.use(Seen(self._in_memory("a command for one page touches no job")))
            else:
                for part in parts:
                    if hasattr(part, "check"):
                        part.check(crawler)
                self._job = session_of(crawler).directory
                self._identity = FingerprinterIdentity.of(crawler.request_fingerprinter)
                self.use(self._seen_in(self._open_filter()))
            for part in parts:
                if hasattr(part, "attach"):
                    part.attach(self)
        except Exception as error:  # noqa: BLE001 - whatever it is, the crawl must not begin
            self.abandon()
            refuse(crawler, error)

    @abstractmethod
    def _open_filter(self) -> Layered:
        """Return the open filter of the crawl. Raises the errors of `from_crawler`."""

    def _seen_in(self, opened: Layered) -> Seen:
        return Seen(opened)

    def _in_memory(self, why: str) -> Layered:
        """Return a new filter in memory, and log `why` it is in memory."""
        announce(self.crawler, "filter", f"{'exact, ' * self._settings.exact}in memory ({why})")
        return self._settings.open_filter(None)

    def put_in_front(self, shortcut: Callable[[Request], bool]) -> None:
        """Have `shortcut` answer in front of `_ask`, and in the place of an unchanged
        `request_seen`, which saves a call."""
        self._ask = shortcut  # type: ignore[assignment,method-assign]
        is_own = is_own_method(self, "request_seen", "scrapy_bloom")
        if is_own and type(self).request_seen is FilterDupeFilter.request_seen:
            vars(self)["request_seen"] = shortcut

    def forget_recent(self) -> None:
        """Clear the cache of URLs seen last."""
        if self._recent is not None:
            self._recent.clear()

    def _close_filter(self) -> None:
        """Close the filter and the parts, and drop all references to the crawl's requests."""
        for in_front in ("request_seen", "_ask", "close_if_full", "fingerprint_of_any"):
            vars(self).pop(in_front, None)
        self.last_request = self._known = None
        self.forget_recent()
        for part in (self._audit, self._metrics):
            if part is not None:
                part.close()
        seen, self._seen, self._see = self._seen, None, _not_open
        if seen is not None:
            seen.filter.close()

    def _update_stats(self) -> None:
        self.stats_due = monotonic() + STATS_INTERVAL
        if self._seen is None:
            return
        try:
            for name, value in self._seen.stats().items():
                self.crawler.stats.set_value(f"bloom/{name}", value)
        except Exception:
            logger.exception("Cannot update the stats of the filter")


class BloomDupeFilter(FilterDupeFilter):
    """Duplicate filter for DUPEFILTER_CLASS with the fingerprints of requests in a growing Bloom
    filter, in memory or, with JOBDIR, in `JOBDIR/bloom`.

    A seen request is always recognised. A new one is taken for a seen one with a probability of at
    most BLOOM_ERROR_RATE, for any number of requests, or never with BLOOM_EXACT. `request_seen`
    never raises: if the filter fails, new fingerprints stay in memory and the spider is closed with
    reason `bloom_error`.
    """

    loses_requests = False
    """True if the job was killed, and its pending requests were in memory only."""
    keeps_requests = False
    """True with a scheduler that stores the requests in the job."""

    def open(self) -> None:
        """Write the first stats, and warn of pending requests that will not be fetched."""
        job, extra = self._job, {"spider": self.crawler.spider}
        if job is not None and not self.keeps_requests:
            announce(
                self.crawler,
                "requests",
                "not durable, a kill -9 may lose the pages in flight: ADDONS ="
                " {'scrapy_bloom.Addon': 300} keeps them",
            )
            if job.requests.is_file():
                logger.warning(
                    "%(file)s may hold requests of DurableScheduler, which another scheduler does"
                    " not fetch: set SCHEDULER to 'scrapy_bloom.DurableScheduler' to get them.",
                    {"file": job.requests},
                    extra=extra,
                )
        if job is not None and self.loses_requests:
            logger.warning(
                "The job in %(job)s was not stopped cleanly. The filter still knows its"
                " %(items)d requests, but Scrapy's scheduler has lost those that were pending,"
                " and they will not be fetched: to get them too, crawl again with a new JOBDIR.",
                {"job": job.path, "items": len(self.filter)},
                extra=extra,
            )
        super().open()

    def close(self, reason: str) -> None:
        """Write the last stats, close the filter, and end the dupefilter's use of the job."""
        try:
            super().close(reason)
        finally:
            session_of(self.crawler).end(self)

    def abandon(self) -> None:
        """Close the filter of a refused start, a killed job's as such, and abandon the job."""
        for layer in self._seen.filter._newest_first if self._seen is not None else ():
            layer.ends_as = layer.found
        super().abandon()
        session_of(self.crawler).abandon()

    def _open_filter(self) -> Layered:
        job, extra = self._job, {"spider": self.crawler.spider}
        if job is None:
            return self._in_memory("there is no JOBDIR")
        self._identity.require_same(stored_identity(job.filter), str(job.filter))
        session_of(self.crawler).begin(self)
        if job.has_only_seen_file:
            from .migration.scrapy_job import import_job

            line = import_job(job, self._settings, self._identity.to_text())
            logger.info("%s", line, extra=extra)
        return self.open_in(job)

    def open_in(self, job: JobDirectory) -> Layered:
        """Return the open filter of `job`, a new one if there is none."""
        opened = self._settings.open_filter(job.filter, self._identity.to_text())
        self.loses_requests = not opened.clean
        where = f"{'exact, ' * opened.exact}{opened.path}"
        known = counted(len(opened), "request")
        announce(self.crawler, "filter", f"{where}, which knows {known}")
        return opened

    def see_despite(self, error: Exception, fingerprint: bytes) -> bool:
        """Return the answer for a fingerprint on which the filter failed, and close the spider."""
        self.close_if_full()
        if not self._closing:
            logger.error(
                "The filter failed: %(error)s. Closing the spider; until then new requests are"
                " remembered as well as can be. Free some space or memory, then resume the job.",
                {"error": message_of(error)},
                exc_info=unforeseen(error),
                extra={"spider": self.crawler.spider},
            )
            self.close_spider("bloom_error")
        if self._seen is None:
            return False
        with suppress(Exception):
            self._seen.filter.growing = None  # it still takes what its error rate allows
            return self._see(fingerprint)
        self._seen.add_unchecked(fingerprint)
        return False


def _not_open(fingerprint: bytes) -> bool:
    return False  # a request after the close, which nothing fetches
