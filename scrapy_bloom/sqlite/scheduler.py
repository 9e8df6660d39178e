"""The scheduler whose requests survive SIGKILL."""

from __future__ import annotations

import logging
from contextlib import suppress
from functools import partial
from importlib import import_module
from time import monotonic
from typing import TYPE_CHECKING, Any

from scrapy import signals
from scrapy.core.scheduler import Scheduler
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name

from ..amounts import counted
from ..crawl.delays import Alarm
from ..crawl.failure_hooks import Failures
from ..crawl.ledger import Ledger
from ..crawl.ledger_scheduler import LedgerScheduler, require_same_spider
from ..crawl.overlay import Keeper
from ..crawl.queue_order import QueueSettings
from ..crawl.settings import DURABLE_FEEDS, budget_of, wants_delta
from ..dupefilter import BloomDupeFilter
from ..errors import JobDirectoryError
from ..jobdir import JobDirectory, feeds_of, session_of
from ..scrapy_private.idle import IdleChecks
from ..scrapy_private.middlewares import put_before_engine
from ..startup import announce, fetches_one_page, is_component, refuse
from ..texts import waiting_text
from .job_file import RequestFile, check_header, named, whole_job
from .progress import Progress
from .records import SqliteRecords
from .request_store import SqliteStore
from .rounds import IS_KEPT, Round, round_opened
from .spider_state import KeptSpiderState, saved_state
from .taken import LocalStartRequests, RepeatedChildren

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter
    from twisted.internet.defer import Deferred
    from typing_extensions import Self

    from .desk import Orders
    from .scrapy_queues import ScrapyQueues

logger = logging.getLogger(__name__)

JOB_BUDGET = "sqlite.budget.JobBudget"
ORDERS_SECONDS = 1.0
"""Between two looks for orders."""
BETWEEN_ORDERS = 0.02
"""Seconds between two parts of the work on orders."""


class DurableScheduler(LedgerScheduler):
    """Scheduler for SCHEDULER that loses no page, however the process ends.

    With JOBDIR, pending requests live in `JOBDIR/requests.sqlite`, and so do those in flight: a row
    goes when the engine is done with its request and what the callback yielded has rows of its own.
    The filter learns of a request when its row is safe. Needs BloomDupeFilter. Without JOBDIR
    requests live in memory, as with Scrapy's scheduler, and any dupefilter will do.

    A disk or a database that fails closes the spider with reason `bloom_error`; what was not
    finished stays in the job. As in Scrapy's scheduler, `df` is the dupefilter, `mqs` the requests
    in memory, and `dqs` those on the disk; without JOBDIR `dqs` and `round` are None.
    """

    commit_operations = 500
    """A commit is due after so many requests pushed, or handed out …"""
    commit_seconds = 0.1
    """… or this long after the first of them, whichever comes first."""

    overdue_seconds = 0.0  # it makes some pending each time

    _log: logging.LoggerAdapter[logging.Logger]
    _file: RequestFile
    _store: SqliteStore
    _start_requests: LocalStartRequests
    _children: RepeatedChildren
    _idle_checks: IdleChecks
    _failures: Failures

    def __init__(self, crawler: Crawler, make_dupefilter: Callable[[], BaseDupeFilter]) -> None:
        super().__init__(crawler, make_dupefilter)
        self._job: JobDirectory | None = None
        self.round: Round | None = None
        self._spider_state: KeptSpiderState | None = None
        self._orders: Orders | None = None
        self._next_look = Alarm(self._look_for_orders)

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the scheduler of `crawler`, or refuse the start, with nothing changed: ValueError
        for a setting, BloomError for what is in JOBDIR or missing in Scrapy."""
        dupefilter_class = load_object(crawler.settings["DUPEFILTER_CLASS"])
        make_dupefilter = partial(build_from_crawler, dupefilter_class, crawler)
        job = session_of(crawler).directory
        if job is None:
            try:
                QueueSettings.read(crawler.settings, "MEMORY")
            except ValueError as error:
                what = "%s, which this crawl has now: without delays, holds and BLOOM_BUDGET"
                logger.warning(what, error)
                return Scheduler.from_crawler(crawler)  # type: ignore[return-value]
        elif fetches_one_page(crawler):
            from ..crawl.one_page import keep_off_the_job

            keep_off_the_job(crawler)
            job = None
        if job is None:
            return cls(crawler, make_dupefilter)
        try:
            if not is_component(dupefilter_class, "BloomDupeFilter"):
                raise ValueError(
                    f"DurableScheduler cannot work with {global_object_name(dupefilter_class)},"
                    " which marks requests as seen before they are stored: set DUPEFILTER_CLASS to"
                    " 'scrapy_bloom.BloomDupeFilter', or SCHEDULER to"
                    " 'scrapy.core.scheduler.Scheduler'"
                )
            starts, children = LocalStartRequests(crawler), RepeatedChildren(crawler)
            for middleware in starts, children:
                put_before_engine(crawler, middleware)
            if (feeds := feeds_of(crawler)) is not None:
                starts.items = feeds.start_items
            idle_checks, failures = IdleChecks(crawler), Failures(crawler)
            _look(crawler, job, feeds)
        except Exception as error:  # noqa: BLE001 - whatever it is, the crawl must not begin
            refuse(crawler, named(job.requests, error))
        self = cls(crawler, make_dupefilter)
        self._start_requests, self._children = starts, children
        self._job, self._idle_checks, self._failures = job, idle_checks, failures
        return self

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the stored requests, and begin. Refuses the start as `from_crawler` does."""
        self.spider = spider
        if self._job is not None and isinstance(self.df, BloomDupeFilter):
            try:
                self._open_job(self._job, self.df)
            except Exception as error:  # noqa: BLE001 - see from_crawler
                self.df.abandon()
                refuse(self.crawler, named(self._job.requests, error))
            self._next_look.set(ORDERS_SECONDS)
        return self.df.open()

    def close(self, reason: str) -> Deferred[None] | None:
        """Acknowledge what is finished, commit, close the dupefilter, and leave the job."""
        self._alarm.cancel()
        self._next_look.cancel()
        ledger, round_ = self.ledger, self.round
        if ledger is not None and round_ is not None:
            # where it has finished, the next start does what was ordered since
            while reason != "finished" and self._carry_out_order():
                pass
            ledger.end(partial(self._conclude, round_, reason))
            if self._spider_state is not None:
                self._spider_state.end(failed=ledger.failed)
            # the feeds write after the last commit of the ledger, which may not have released all
            round_.commit = partial(self._store.commit, None)
            session_of(self.crawler).end(self)
        elif reason == "finished" and (left := len(self)):
            self.stats.set_value("scheduler/failed", left)  # of dead hosts
        return self.df.close(reason)

    def _count_pending(self) -> int:
        return len(self) - self._store.of_dead_hosts

    def _begin(self, request: Request | None = None) -> Any:
        """Begin the round, or go on with it: the spider is open, or sends a `request` before."""
        if vars(self).get("enqueue_request") == self._begin:
            del vars(self)["enqueue_request"]
        assert self.ledger is not None and self.round is not None  # noqa: PT018
        with self.ledger.guarded():
            self.round.begin()
        return request and self.enqueue_request(request)

    def _open_job(self, job: JobDirectory, dupefilter: BloomDupeFilter) -> None:
        crawler, settings = self.crawler, self.crawler.settings
        assert self.spider is not None
        self._log = logging.LoggerAdapter(logger, {"spider": self.spider})
        was_durable = check_header(job.requests)
        if was_durable and (desk := _desk(job)):
            desk.carry_out(job)
        file = RequestFile.open(job.requests)
        try:
            keeper = Keeper(dupefilter, requests_survive=was_durable)
            keeper.note_commit(file.id, file.commits)
            if file.spider != self.spider.name:
                file.execute("UPDATE job SET spider = ?", (self.spider.name,))
            if not file.clean:
                self._release_again(file, keeper)
            queues = QueueSettings.read(settings)
            slots, newest_first = queues.slots(crawler), queues.newest_first
            self._budget = budget = budget_of(settings, JOB_BUDGET, file)
            # as the look did: before what is asked again waits beside that of dead hosts
            kept = _kept(file)
            goes_on = kept is not None and kept.goes_on(crawler, file, queues, budget)
            records = SqliteRecords(file, slots, newest_first)
            if budget is None:
                file.execute("DELETE FROM budget")  # the counts of one end with it
            else:
                budget.begin(records)
            is_chosen = kept is not None and kept.retry(records, self._failures, budget)
            about = crawler, file, records, queues, keeper.note_commit, self._local_holds
            self._file, self._store = file, (store := SqliteStore(*about))
            if (left := _left_by_scrapy(job)) is not None:
                taken = "Took over %d pending requests from Scrapy's own queues"
                self._log.info(taken, left.move(file, crawler, store, budget))
            timing = self.commit_operations, self.commit_seconds
            ledger = Ledger(crawler, store, keeper, self._engine, *timing)
            ledger.named = partial(named, job.requests)
            session = session_of(crawler)
            session.begin(self)
            session.closers.insert(0, ledger.close)
            self.round = Round(file, ledger.commit, goes_on=goes_on)
            records.round = partial(getattr, self.round, "number")
            self.round.at_begin.append(records.forget_slots)
            if budget is not None:
                budget.open(self, store, ledger, self.round)
            self._start_requests.open(dupefilter.fingerprint, self.round, ledger)
            self._spider_state = KeptSpiderState.of(crawler, file)
            if self._spider_state is not None:
                ledger.commit_hooks.append(self._spider_state)
                self._spider_state.put_back()
            if (feeds := feeds_of(crawler)) is not None:
                feeds.attach(ledger, self.round)
            self._children.open(file, store, ledger, dupefilter.fingerprint)
            self._failures.open(ledger)
            Progress(crawler, file, ledger, dupefilter, self.round, self._count_pending)
            pending = f"{counted(len(records) + records.delayed, 'request')} pending"
            held = sum(hold.until > monotonic() for hold in self.holds.values())
            due = store.next_due
            waits = waiting_text(store.later, due and max(0.0, due), held)
            announce(crawler, "requests", f"{job.requests}, {pending}{waits and ', '}{waits}")
            self.ledger, self._idle_checks.settle = ledger, self._settle
            self.round.at_start.append(partial(crawler.signals.send_catch_log, round_opened))
            vars(self)["enqueue_request"] = self._begin
            crawler.signals.connect(self._begin, signals.spider_opened)
            if is_chosen:
                # a kill must not leave the choice to another retry, after requests of this one
                self._begin()
                ledger.commit()
        except BaseException:
            with suppress(Exception):
                file.close(clean=False)
            raise

    def _look_for_orders(self) -> None:
        """Carry out a part of what an operator has ordered, and look again."""
        if self.ledger is not None and not self.ledger.stopped:
            self._next_look.set(BETWEEN_ORDERS if self._carry_out_order() else ORDERS_SECONDS)

    def _carry_out_order(self) -> bool:
        """Carry out a part of an order; return True if there may be more."""
        assert self._job is not None and self.ledger is not None  # noqa: PT018
        if self._orders is None and (desk := _desk(self._job)):
            about = self._job, self.ledger, self._file, self._store.records, self
            self._orders = desk.Orders(*about)
        return self._orders is not None and self._orders.proceed()

    def _settle(self) -> None:
        """Commit, and carry out what is ordered, while the engine can still go on."""
        assert self.ledger is not None
        self.ledger.commit()
        while self._carry_out_order():
            self._engine.wake()

    def _conclude(self, round_: Round, reason: str) -> None:
        """End the round, if nothing of it is left or can come, and say what has failed."""
        assert self._job is not None
        self._failures.report("job", self._job.path, self._store.records.reasons())
        has_ended = self._start_requests.exhausted and not self._idle_checks.may_give_more
        # after Ctrl-C people go on until it says `finished`; a handler may stop an idle spider
        may_end = reason != "shutdown" or self._idle_checks.has_closed
        if has_ended and may_end and not self._waits and round_.file.is_empty:
            if reason != "finished":
                self._log.info("Round %d is over: the next start begins a new one", round_.number)
            round_.complete()

    def _release_again(self, file: RequestFile, keeper: Keeper) -> None:
        # their rows are safe, their bits perhaps not: the process died in between
        keeper.release(file.unreleased)
        ((count,),) = file.query("SELECT COUNT(*) FROM request WHERE state < 3")
        self.stats.set_value("scheduler/recovered", count)
        found = counted(count, "request")
        self._log.info("The job was not stopped cleanly: %s pending or in progress", found)


def _look(crawler: Crawler, job: JobDirectory, feeds: Any) -> None:
    """Raise what `from_crawler` refuses of the settings and of what is in `job`."""
    queues = QueueSettings.read(crawler.settings)
    if job.is_locked:
        with job.locked():  # refuses, unless that has just ended
            pass
    with whole_job(job, resets=wants_delta(crawler.settings)) as file:
        spider = file.spider if file else ""
        require_same_spider(str(job.path), spider, crawler, "give each spider a JOBDIR of its own")
        if feeds is not None:
            round_ = None
            if file is not None:
                kept = _kept(file)
                budget = budget_of(crawler.settings, JOB_BUDGET, file)
                goes_on = kept is not None and kept.goes_on(crawler, file, queues, budget)
                round_ = Round(file, lambda: None, goes_on=goes_on)
            feeds.look(round_)
        elif file and DURABLE_FEEDS.read(crawler.settings) and file.query("SELECT 1 FROM feeds"):
            why = "has feeds that are not complete, and FEEDS cannot be written: correct FEEDS"
            raise JobDirectoryError(f"{job.path} {why}, or set BLOOM_DURABLE_FEEDS to False")
    saved_state(crawler)
    if (left := _left_by_scrapy(job)) is not None:
        left.look(crawler, queues)


def _left_by_scrapy(job: JobDirectory) -> ScrapyQueues | None:
    """Return the pending requests of Scrapy's own scheduler in `job`, None without any."""
    if not job.scrapy_queue.exists():
        return None
    from .scrapy_queues import ScrapyQueues

    queues = ScrapyQueues(job)
    return queues if queues.state else None


def _desk(job: JobDirectory) -> Any:
    """Return the module that carries out orders, None if none stands in `job`."""
    return import_module(".desk", __package__) if any(job.orders.glob("*.json")) else None


def _kept(file: RequestFile) -> Any:
    """Return the module that has kept requests pending again, None if nothing is kept."""
    return import_module(".kept", __package__) if file.query(IS_KEPT) else None
