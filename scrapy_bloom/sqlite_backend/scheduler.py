"""The scheduler whose requests survive SIGKILL."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.python import global_object_name

from ..dupefilter.local import BloomDupeFilter
from ..errors import RequestFileError
from ..feeds.exporter import durable_exporter
from ..job.failures import Failures
from ..job.ledger import Ledger
from ..job.ledger_scheduler import LedgerScheduler, keep_off_the_job, require_same_spider
from ..job.queue_settings import QueueSettings, memory_queue
from ..jobdir import JobDirectory
from ..reporting import counted
from ..scrapy_compat import EngineView, FeedExporterView, IdleChecks, path_safe, put_before_engine
from ..settings import FailedSettings, wants_delta
from ..startup import announce, fetches_one_page, refuse
from .failed_store import OpenFailedStore
from .repeated_children import RepeatedChildren, TakenChildren
from .request_file import RequestFile, as_it_is, check_header, require_whole_job
from .request_store import SqliteStore
from .rounds import Round
from .scrapy_queues import ScrapyQueues
from .spider_state import KeptSpiderState
from .start_marks import LocalStartRequests, TakenStartRequests
from .status import Progress

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.crawler import Crawler
    from scrapy.dupefilters import BaseDupeFilter
    from twisted.internet.defer import Deferred
    from typing_extensions import Self

    from ..feeds.exporter import DurableFeedExporter

logger = logging.getLogger("scrapy_bloom.durable.scheduler")


class DurableScheduler(LedgerScheduler):
    """Scheduler for SCHEDULER that loses no page, however the process ends.

    With JOBDIR, pending requests live in `JOBDIR/requests.sqlite`, and so do those in
    flight: a request's row goes only when the engine is done with it and what its
    callback yielded has rows of its own. The filter learns of a request when its row
    is safe. Needs BloomDupeFilter. Without JOBDIR requests live in memory, as with
    Scrapy's scheduler, and any dupefilter will do.

    A disk or a database that fails closes the spider with reason `bloom_error`; what
    was not finished stays in the job.

    As in Scrapy's scheduler, `df` is the dupefilter, `mqs` the requests in memory, and
    `dqs` those on the disk, None without JOBDIR. `round` is the one that the job is in,
    None without JOBDIR.
    """

    commit_operations = 200
    """A commit is due after so many requests pushed, or handed out …"""
    commit_seconds = 0.1
    """… or this long after the first of them, whichever comes first."""

    def __init__(self, crawler: Crawler, dupefilter: BaseDupeFilter) -> None:
        super().__init__(crawler, dupefilter)
        self._job: _Job | None = None
        self.round: Round | None = None
        self._spider_state: KeptSpiderState | None = None

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """Return the scheduler of `crawler`.

        Refuses the start, and has changed nothing then: ValueError for a setting,
        BloomError for what is in JOBDIR, JobDirectoryError where Scrapy does not tell
        when a request is done.
        """
        dupefilter_class = load_object(crawler.settings["DUPEFILTER_CLASS"])
        job = JobDirectory.of(crawler.settings.get("JOBDIR"))
        if job is not None and fetches_one_page(crawler):
            keep_off_the_job(crawler)
            job = None
        if job is None:
            return cls(crawler, build_from_crawler(dupefilter_class, crawler))
        try:
            _require_bloom(dupefilter_class)
            prepared = _Job(crawler, job)
            put_before_engine(crawler, prepared.start_requests)
            put_before_engine(crawler, prepared.children)
            exporter = durable_exporter(crawler)
            if exporter is not None:
                put_before_engine(crawler, exporter.start_items)
        except Exception as error:  # noqa: BLE001 - whatever it is, the crawl must not begin
            refuse(crawler, error)
        self = cls(crawler, build_from_crawler(dupefilter_class, crawler))
        self._job = prepared
        return self

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the stored requests, and begin. Refuses the start as `from_crawler` does."""
        self.spider = spider
        self.mqs = memory_queue(self.crawler)
        if self._job is not None and isinstance(self.df, BloomDupeFilter):
            try:
                self._ledger = self._open_job(self._job, self.df)
            except Exception as error:  # noqa: BLE001 - see from_crawler
                self.df.abandon()
                is_files = isinstance(error, sqlite3.Error)
                refuse(self.crawler, RequestFileError(str(error)) if is_files else error)
        return self.df.open()

    def close(self, reason: str) -> Deferred[None] | None:
        """Acknowledge what is finished, commit, and close the requests and the
        dupefilter; the requests later if feeds are to be stored yet."""
        ledger, job = self._ledger, self._job
        if ledger is not None and job is not None and self.round is not None:
            ledger.end(partial(self._conclude, job, self.round))
            if self._spider_state is not None:
                self._spider_state.end(failed=ledger.failed)
            lock = None
            if self.round.awaits_feeds and isinstance(self.df, BloomDupeFilter):
                lock = self.df.hand_over_lock()
            self.round.hand_over(
                commit=partial(ledger.store.commit, ()), close=partial(ledger.close, lock)
            )
            if not self.round.awaits_feeds:
                self.round.close()
        return self.df.close(reason)

    def _note_stored(self, request: Request) -> None:
        if self._job is not None:
            self._job.start_requests.stored(request)
            self._job.children.stored(request)

    def _note_kept(self, request: Request) -> None:
        if self._job is not None:
            self._job.start_requests.kept(request)
            self._job.children.kept(request)

    def _open_job(self, job: _Job, dupefilter: BloomDupeFilter) -> Ledger:
        file = RequestFile.open(job.directory.requests)

        def note_commit() -> None:
            dupefilter.note_commit(file.id, file.commits)

        try:
            note_commit()
            assert self.spider is not None
            file.name_spider(self.spider.name)
            dupefilter.hold_back(requests_kept=job.was_durable)
            if not file.clean:
                self._recover(file, dupefilter)
            failed = OpenFailedStore(file)
            job.failures.retry(failed)
            store = SqliteStore(self.crawler, file, job.directory.requests, job.queues, note_commit)
            if len(store.pending):
                logger.info(
                    "Resuming crawl (%(count)d requests scheduled)",
                    {"count": len(store.pending)},
                    extra={"spider": self.spider},
                )
            if job.left_by_scrapy.state:
                logger.info(
                    "Took over %(count)d pending requests from Scrapy's own queues",
                    {"count": store.take_over(job.left_by_scrapy)},
                    extra={"spider": self.spider},
                )
            ledger = Ledger(
                self.crawler,
                store,
                dupefilter,
                EngineView(self.crawler),
                operations=self.commit_operations,
                seconds=self.commit_seconds,
            )
            round_ = self._open_round(job, file, ledger, dupefilter)
            children = TakenChildren(file, store.codec.fields)
            job.children.open(children, store, ledger, dupefilter.fingerprint)
            round_.at_end.append(children.forget_all)
            job.failures.open(ledger, failed)
            Progress(self.crawler, file, ledger, dupefilter, pending=self.__len__)
        except BaseException:
            with suppress(Exception):
                file.close(clean=False)
            raise
        pending = counted(len(store.pending), "request")
        announce(self.crawler, "requests", f"{job.directory.requests}, {pending} pending")
        return ledger

    def _open_round(
        self, job: _Job, file: RequestFile, ledger: Ledger, dupefilter: BloomDupeFilter
    ) -> Round:
        self.round = Round(file, ledger.commit)
        if not wants_delta(self.crawler.settings):
            self.round.forget_lists()
        taken = TakenStartRequests(file, dupefilter.fingerprint)
        job.start_requests.open(taken, self.round, ledger)
        self._spider_state = KeptSpiderState.of(self.crawler, file)
        if self._spider_state is not None:
            ledger.participants.append(self._spider_state)
            self._spider_state.put_back()
        exporter = durable_exporter(self.crawler)
        if exporter is not None:
            exporter.attach(ledger, self.round, job.directory.feeds)
        return self.round

    def _conclude(self, job: _Job, round_: Round) -> None:
        """End the round, if nothing of it is left or can come, and say what has failed."""
        job.failures.report("job", job.directory.path)
        if not job.start_requests.exhausted or job.idle_checks.may_give_more:
            return
        assert self._ledger is not None
        if not len(self) and (round_.file.is_empty or self._ledger.waits_for_postponed):
            round_.complete()

    def _recover(self, file: RequestFile, dupefilter: BloomDupeFilter) -> None:
        # their rows are safe, their bits perhaps not: the process died in between
        dupefilter.release(file.unreleased)
        count = sum(file.counts.values())
        self.stats.set_value("scheduler/recovered", count)
        logger.info(
            "The job was not stopped cleanly: recovered %(count)d requests that were pending or"
            " in progress",
            {"count": count},
            extra={"spider": self.spider},
        )


class _Job:
    """What is known of a job before anything is changed in it. Raises ValueError,
    BloomError."""

    def __init__(self, crawler: Crawler, directory: JobDirectory) -> None:
        self.directory = directory
        self.queues = QueueSettings.read(crawler.settings)
        self.start_requests = LocalStartRequests(crawler)
        self.children = RepeatedChildren(crawler)
        EngineView(crawler)
        self.idle_checks = IdleChecks(crawler)
        self.failures = Failures(crawler, FailedSettings.read(crawler.settings))
        if self.queues.by_slot:
            path_safe()
        self.left_by_scrapy = ScrapyQueues(directory)
        self.was_durable = check_header(directory.requests)
        if not directory.is_locked:  # by a process that has looked, and is named soon
            identity = require_whole_job(directory)
            require_same_spider(
                str(directory.path),
                identity.spider if identity else "",
                crawler,
                "give each spider a JOBDIR of its own",
            )
            self._require_feeds(durable_exporter(crawler))

    def _require_feeds(self, exporter: DurableFeedExporter | None) -> None:
        if exporter is None:
            return
        FeedExporterView(exporter)
        with as_it_is(self.directory.requests) as file:
            if file is not None:
                exporter.look(Round(file, lambda: None), self.directory.feeds)


def _require_bloom(dupefilter_class: object) -> None:
    if not (isinstance(dupefilter_class, type) and issubclass(dupefilter_class, BloomDupeFilter)):
        raise ValueError(
            f"DurableScheduler cannot work with {global_object_name(dupefilter_class)}, which"
            " marks requests as seen before they are stored: set DUPEFILTER_CLASS to"
            " 'scrapy_bloom.BloomDupeFilter', or SCHEDULER to 'scrapy.core.scheduler.Scheduler'"
        )
