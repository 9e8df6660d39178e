"""The scheduler of a crawl that many processes share."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from scrapy.utils.misc import load_object
from scrapy.utils.python import global_object_name

from ..crawl.ledger_scheduler import LedgerScheduler
from ..crawl.one_page import keep_off_the_job
from ..crawl.queue_order import QueueSettings
from ..jobdir import session_of
from ..startup import fetches_one_page, refuse
from .codec import is_storable_slot
from .dupefilter import RedisBloomDupeFilter
from .worker import Worker

if TYPE_CHECKING:
    from collections.abc import Collection

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from twisted.internet.defer import Deferred
    from typing_extensions import Self

    from ..crawl.budget import Name


class RedisDurableScheduler(LedgerScheduler):
    """Scheduler for SCHEDULER that shares the requests of a crawl with other processes on
    any machines, in Redis at BLOOM_REDIS_URL under BLOOM_REDIS_KEY, and loses no page if
    any of them dies at any moment.

    A request stays in Redis until the worker that has claimed it has finished it, and the requests
    that its callback yielded are in Redis too. The claims of a dead worker are pending again when
    its lease has expired. Needs RedisBloomDupeFilter, whose filter is in the same hash slot.

    Requests that fail stay in the crawl, as with DurableScheduler in the job.

    During an outage of Redis the worker goes on with its claims, and waits. A crawl that is gone
    closes the spider with reason `bloom_error`; one that was over when the worker started, with
    `bloom_over`.
    """

    medium = "redis"
    _counts_stored = False
    df: RedisBloomDupeFilter
    worker: Worker | None = None
    """The worker that this process is. None in a command for one page, which joins no crawl:
    requests live in memory then."""
    _uncounted = 0
    """Requests in memory that Redis has yet to count."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the scheduler of `crawler`.

        Refuses the start: ValueError for a setting, BloomError if the state in Redis forbids it, or
        Redis does not answer.
        """
        dupefilter_class = load_object(crawler.settings["DUPEFILTER_CLASS"])
        try:
            if not (
                isinstance(dupefilter_class, type)
                and issubclass(dupefilter_class, RedisBloomDupeFilter)
            ):
                raise ValueError(
                    f"RedisDurableScheduler cannot work with {global_object_name(dupefilter_class)}"
                    ", which does not share its filter: set DUPEFILTER_CLASS to"
                    " 'scrapy_bloom.RedisBloomDupeFilter'"
                )
            if not (is_one_page := fetches_one_page(crawler)):
                QueueSettings.read(crawler.settings)  # before the filter is made
                worker = Worker(crawler)
        except Exception as error:  # noqa: BLE001 - no error may let the crawl begin
            refuse(crawler, error)
        if is_one_page:
            keep_off_the_job(crawler)
            return cls(crawler, partial(dupefilter_class.from_crawler, crawler))
        try:
            self = cls(crawler, partial(dupefilter_class.beside_queue, crawler))
        except BaseException:
            _leave_directory(crawler)
            raise
        self.worker, self._start_requests = worker, worker.start_requests
        return self

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Join the crawl. Refuses the start as `from_crawler` does."""
        self.spider = spider
        try:
            if self.worker is None:
                self.df.open()
                return None
            self.worker.open(self.df, in_memory=lambda: self._in_memory, held=self.send_back)
        except Exception as error:  # noqa: BLE001 - see from_crawler
            self.df.abandon()
            _leave_directory(self.crawler)
            refuse(self.crawler, error)
        self.ledger, self._holds_of = self.worker.ledger, self.worker.store
        self._budget = self._budget and self.worker.budget
        self.worker.budget.counts_here = False
        self.df.open()
        self.worker.begin()
        return None

    def close(self, reason: str) -> Deferred[None] | None:
        """Acknowledge what is finished, send new requests, give back other claims, and leave the
        crawl, which ends if no requests are left. The reactor waits for that."""
        self._alarm.cancel()
        if self.worker is not None:
            self.worker.end(finished=self.worker.idle_checks.has_closed and not self.mqs)
        self.df.close(reason)
        return None

    def has_pending_requests(self) -> bool:
        """Return True unless the crawl is at rest: no request is pending, delayed or claimed."""
        worker = self.worker
        if worker is None:
            return len(self) > 0
        if self._asks_for_rest:
            return bool(self.mqs) or not (worker.is_at_rest or worker.only_waits)
        if self._waits:
            return True
        # claims that wait for what is in memory only, of dead hosts, are given back at the close
        return not (worker.is_at_rest or (self._in_memory > 0 and worker.store.only_dispatched))

    def pause(self, seconds: float | None, likely: Collection[str] = ()) -> None:
        """Do that, and leave to other workers what the engine has not got."""
        super().pause(seconds, likely)
        if self.worker is not None:
            self.worker.store.pause(seconds)

    @property
    def _in_memory(self) -> int:
        return super()._in_memory + self._uncounted

    def _put_in_memory(self, request: Request, delay: float | None) -> None:
        """Do that when Redis has counted it, in a crawl with a budget."""
        slot = self._slot_of(request)
        names: list[Name] = []
        if self._budget is not None and is_storable_slot(slot):
            names = self._budget.names_in(self, request)
        if self.worker is None or not names:
            super()._put_in_memory(request, delay)
            return
        self._uncounted += 1
        self.worker.store.count(request, slot, names, partial(self._take_counted, request, delay))

    def _take_counted(self, request: Request, delay: float | None, full: Name | None) -> None:
        assert self.ledger is not None
        self._uncounted -= 1
        if full is None:
            super()._put_in_memory(request, delay)
            self._engine.wake()
        else:
            self._budget.note(self.crawler, full)
            self.ledger.dispatch(request)  # and so it is done


def _leave_directory(crawler: Crawler) -> None:
    """Release JOBDIR, and remove it if nothing is in it: Scrapy has made it for each worker."""
    session = session_of(crawler)
    session.abandon()
    if session.directory is not None:
        with suppress(OSError):
            session.directory.path.rmdir()
