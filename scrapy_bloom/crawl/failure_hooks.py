"""Detection of failed requests, by hooks into Scrapy."""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from scrapy import Request, signals
from scrapy.http import Response
from scrapy.spidermiddlewares.httperror import HttpError
from twisted.python.failure import Failure

from ..amounts import counted
from ..scrapy_private import middlewares
from ..texts import in_brief
from .failed_request import CAPPED, IN_MEMORY, LOST, FailedRequest, download_reason, item_refused
from .origins import request_of
from .settings import FAILED_KINDS, KEEP_FAILED, RETRY_FAILED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scrapy import Spider
    from scrapy.crawler import Crawler

    from .ledger import Ledger

logger = logging.getLogger(__name__)

_at_work: WeakSet[Failures] = WeakSet()


class Failures:
    """Tells the ledger which requests fail, of the kinds in BLOOM_FAILED_KINDS.

    A failed download shows in Scrapy's log if no errback has handled it, a status next to
    HttpErrorMiddleware, an exception or an item that a feed refuses by a signal. What is no failure
    by default is in optional_failures.py. Raises JobDirectoryError where this release of Scrapy
    lacks such a place, and ValueError for a setting.
    """

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler
        self.retries = RETRY_FAILED.read(crawler.settings)
        self._keeps = KEEP_FAILED.read(crawler.settings)
        self._ledger: Ledger | None = None
        self._log = logging.LoggerAdapter(logger, {"spider": crawler.spider})
        self._retried = {int(code) for code in crawler.settings.getlist("RETRY_HTTP_CODES")}
        kinds = FAILED_KINDS.read(crawler.settings) if self._keeps else frozenset()
        if "download" in kinds:
            middlewares.on_download_error(crawler, self._download_error)
        if "status" in kinds:
            middlewares.on_unhandled_status(crawler, self.process_spider_exception)
        if "callback" in kinds:
            crawler.signals.connect(self._spider_error, signals.spider_error)
        if "feed" in kinds:
            crawler.signals.connect(self._item_refused, item_refused)
        if not kinds <= FAILED_KINDS.default:
            from .optional_failures import OptionalFailures

            self._optional = OptionalFailures(crawler, kinds, self)

    def tell(self, what: str, count: int) -> None:
        """Log `what` is done with so many requests, if there are any."""
        if count:
            self._log.info(what, {"requests": counted(count, "request")})

    def open(self, ledger: Ledger) -> None:
        """Begin to tell `ledger`."""
        self._ledger = ledger
        if self._keeps:
            _at_work.add(self)

    def report(self, where: str, place: object, reasons: Mapping[str, int]) -> None:
        """Stop telling the ledger, and log how many requests have failed for these `reasons`, most
        first: in the "job" or the "crawl" (`where`), at a place as the command line takes it."""
        _at_work.discard(self)
        self._ledger = None
        # what is capped the project asks for
        reasons = {reason: count for reason, count in reasons.items() if reason != CAPPED}
        total = sum(reasons.values())
        self._crawler.stats.set_value("scheduler/failed", total)
        if total:
            self._log.warning(
                "%(requests)s failed and %(stay)s in the %(where)s: %(reasons)s. 'scrapy bloom"
                " failed %(place)s' lists them; 'scrapy bloom retry %(place)s' has the next start"
                " ask them once more%(but)s, 'scrapy bloom drop %(place)s' forgets them.",
                {
                    "requests": counted(total, "request"),
                    "stay": "stays" if total == 1 else "stay",
                    "where": where,
                    "reasons": ", ".join(f"{n:,} {in_brief(why)}" for why, n in reasons.items()),
                    "place": place,
                    "but": ", but no unserializable one" * (LOST in reasons),
                },
            )
        if in_memory := self._crawler.stats.get_value(IN_MEMORY):
            what = "%(requests)s failed that cannot be stored, and so cannot be kept"
            self._log.warning(what, {"requests": counted(in_memory, "request")})

    def note(self, source: Response | Failure | None, reason: str, error: Any = None) -> None:
        """Note that the request which `source` answers fails."""
        if error is None and isinstance(source, Failure):
            error = source.value
        status = None
        with suppress(Exception):  # an exception may have a `response` that raises
            status = (source if isinstance(source, Response) else error.response).status
        self.note_request(request_of(self._crawler, source), reason, error, status)

    def process_spider_exception(self, response: Response, exception: Exception) -> None:
        """Note a status that did not reach the callback, and let the exception pass."""
        if isinstance(exception, HttpError) and response.status in self._retried:
            self.note(response, f"status/{response.status}")

    def note_request(
        self, request: Request | None, reason: str, error: Any, status: Any = None
    ) -> None:
        """Note that `request` fails."""
        if request is not None and self._ledger is not None:
            failed = FailedRequest.of(request, reason, status=status, exception=error)
            self._ledger.fail(request, failed)

    def _download_error(self, failure: Failure, request: Request) -> None:
        if failure.value is not None:
            self.note_request(request, download_reason(failure.value), failure.value)

    def _spider_error(self, failure: Failure, response: Any, spider: Spider) -> None:
        is_errback = isinstance(response, Failure)
        self.note(response, "errback" if is_errback else "callback", failure.value)

    def _item_refused(self, response: Response | Failure | None, error: Exception) -> None:
        self.note(response, "feed", error)


def fail(response_or_failure: Response | Failure, reason: str) -> None:
    """Let a request stay in the job as failed, although its callback or errback, which calls this,
    handles it: a login page with status 200, for instance. `reason` is what `scrapy bloom failed`
    groups by. Does nothing without a job of DurableScheduler or with BLOOM_KEEP_FAILED = False.
    Raises TypeError, ValueError."""
    if not isinstance(response_or_failure, (Response, Failure)):
        raise TypeError(
            "scrapy_bloom.fail() takes the response that a callback has got, or the failure of"
            f" an errback, and not {response_or_failure!r}"
        )
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"the reason is {reason!r}: it must be text, such as 'login page'")
    for failures in [*_at_work]:
        failures.note(response_or_failure, " ".join(reason.split()))
