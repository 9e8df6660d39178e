"""The scheduler whose requests survive SIGKILL."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from scrapy.core.scheduler import Scheduler
from scrapy.pqueues import DownloaderAwarePriorityQueue, ScrapyPriorityQueue, _path_safe
from scrapy.utils.asyncio import call_later
from scrapy.utils.misc import build_from_crawler
from scrapy.utils.python import global_object_name

from ..dupefilter import BloomDupeFilter
from ..errors import BloomError, JobDirectoryError
from .in_flight import InFlight
from .queues import RequestQueue, queue_kind
from .request_file import RequestFile, check_header
from .scrapy_internals import check_engine, is_in_progress
from .takeover import ScrapyJob

if TYPE_CHECKING:
    from scrapy import Request, Spider
    from scrapy.utils.asyncio import CallLaterResult
    from twisted.internet.defer import Deferred

logger = logging.getLogger(__name__)


class DurableScheduler(Scheduler):
    """Scheduler for SCHEDULER that loses no page, however the process ends.

    With JOBDIR, pending requests live in `JOBDIR/requests.sqlite`, and so do those in
    flight: a request's row goes only when the engine is done with it and what its
    callback yielded has rows of its own. The filter learns of a request when its row
    is safe. Needs BloomDupeFilter. Without JOBDIR this is Scrapy's scheduler.

    A disk or a database that fails closes the spider with reason `bloom_error`; what
    was not finished stays in the job.
    """

    commit_operations = 200
    """A commit is due after so many requests pushed, or handed out …"""
    commit_seconds = 0.1
    """… or this long after the first of them, whichever comes first."""

    _file: RequestFile | None = None
    _failed = False
    _handed_out = 0
    _timer: CallLaterResult | None = None

    def open(self, spider: Spider) -> Deferred[None] | None:
        """Open the dupefilter, which locks the job, and then the requests.

        Logs and raises whatever is wrong: ValueError for a setting, BloomError for
        what is in JOBDIR or missing in Scrapy.
        """
        if self.dqdir is None:
            return super().open(spider)
        self.spider = spider
        try:
            self._check()
            self._open_job(Path(self.dqdir))
        except (BloomError, ValueError) as error:
            logger.error("%s", error, extra={"spider": spider})
            raise
        return None

    def close(self, reason: str) -> Deferred[None] | None:
        """Acknowledge what is finished, commit, and close the requests and the
        dupefilter."""
        if self.dqdir is None:
            return super().close(reason)
        if self._file is not None:
            self._commit()
            if self._timer is not None:
                self._timer.cancel()
            try:
                self._file.close(clean=not self._failed)
            except Exception as error:  # noqa: BLE001 - the dupefilter must be closed too
                self._fail(error)
            # who crawls now, in a handler of spider_closed, comes too late
            self._failed = True
        return self.df.close(reason)

    def enqueue_request(self, request: Request) -> bool:
        """Store `request` unless it was seen; durable with the next commit. Return
        False if it was seen or could not be stored. Never raises."""
        if self._file is None:
            return super().enqueue_request(request)
        if self._failed:
            # its parent is not acknowledged any more, and yields it again
            return False
        try:
            if not super().enqueue_request(request):
                return False
        except (sqlite3.Error, OSError) as error:
            self._fail(error)
            return False
        except Exception as error:  # noqa: BLE001 - foreign code: queues, dupefilter, downloader
            self._leave_out(request, error)
            return False
        if self._file.operations >= self.commit_operations:
            self._commit()
        else:
            self._commit_later()
        return True

    def next_request(self) -> Request | None:
        """Return the next request, as Scrapy orders them; it keeps its row."""
        if self._file is None:
            return super().next_request()
        if self._failed:
            return None
        if self._handed_out >= self.commit_operations:
            self._commit()
        request = super().next_request()
        if request is not None:
            self._handed_out += 1
            self._in_flight.start(request)
            self._commit_later()
        return request

    def finish_request(self, request: Request) -> None:
        """Acknowledge `request`, with the next commit: it is not fetched again.

        Does nothing while the engine still works on it, or if it is none of ours.
        """
        if self._file is not None and not self._failed:
            self._acknowledge(request, self._file)
            self._commit_later()

    def _check(self) -> None:
        """Raise if the job could lose pages, before anything is changed in it."""
        if not isinstance(self.df, BloomDupeFilter):
            raise ValueError(
                f"DurableScheduler cannot work with {global_object_name(type(self.df))}, which"
                " marks requests as seen before they are stored: set DUPEFILTER_CLASS to"
                " 'scrapy_bloom.BloomDupeFilter', or SCHEDULER to"
                " 'scrapy.core.scheduler.Scheduler'"
            )
        self._bloom = self.df
        check_engine(cast("Any", self.crawler).engine)
        if not issubclass(
            cast("type", self.pqclass), (DownloaderAwarePriorityQueue, ScrapyPriorityQueue)
        ):
            raise ValueError(
                f"SCHEDULER_PRIORITY_QUEUE is {global_object_name(self.pqclass)}: DurableScheduler"
                " knows Scrapy's own and their subclasses only"
            )
        self._kinds = [
            queue_kind(cast("type", queue_class), f"SCHEDULER_{which}DISK_QUEUE")
            for which, queue_class in (("", self.dqclass), ("START_", self._sdqclass))
            if which == "" or queue_class is not None
        ]
        path = Path(cast("str", self.dqdir))
        self._scrapy_job = ScrapyJob(path.parent)
        self._bloom.durable = check_header(path)

    def _open_job(self, path: Path) -> None:
        self._bloom.hold_back()
        self._bloom.open()
        try:
            self._file = RequestFile.open(path)
            self._in_flight = InFlight()
            self._unreleased: list[bytes] = []
            self._recover(self._file)
            # unserializable requests cost a repetition after a crash: always say so
            self.logunser = True
            self.mqs = self._mq()
            stock = self.dqclass, self._sdqclass
            self.dqs = self._dq()
            if self._scrapy_job.state:
                self._take_over(self._file, self.dqs, stock)
        except BaseException:
            if self._file is not None:
                with suppress(Exception):
                    self._file.close(clean=False)
                self._file = None
            raise

    def _recover(self, file: RequestFile) -> None:
        if file.clean:
            return
        # their rows are safe, their bits perhaps not: the process died in between
        self._bloom.release(file.unreleased)
        count = sum(file.counts.values())
        cast("Any", self.stats).set_value("scheduler/recovered", count)
        logger.info(
            "The job was not stopped cleanly: recovered %(count)d requests that were pending or"
            " in progress",
            {"count": count},
            extra={"spider": self.spider},
        )

    def _take_over(self, file: RequestFile, queue: ScrapyPriorityQueue, stock: Any) -> None:
        disk_class, start_class = stock

        def open_queue(key: str, state: Any) -> Any:
            return build_from_crawler(
                cast("Any", self.pqclass),
                cast("Any", self.crawler),
                downstream_queue_cls=disk_class,
                key=key,
                startprios=state,
                start_queue_cls=start_class,
            )

        count = self._scrapy_job.move(file, open_queue, queue)
        logger.info(
            "Took over %(count)d pending requests from Scrapy's own queues",
            {"count": count},
            extra={"spider": self.spider},
        )

    def _dq(self) -> ScrapyPriorityQueue:
        """Return Scrapy's priority queue over the stored requests."""
        file = cast("RequestFile", self._file)
        by_slot = issubclass(cast("type", self.pqclass), DownloaderAwarePriorityQueue)
        if not by_slot:
            file.merge("slot", "")
        if self._sdqclass is None:
            file.merge("start", 0)
        slots = {_path_safe(slot): slot for slot, _, _ in file.counts}
        classes = [
            RequestQueue.bound(
                file=file,
                newest_first=newest_first,
                format=format_,
                root=self.dqdir,
                slots=slots,
                popped=self._in_flight.start,
            )
            for newest_first, format_ in self._kinds
        ]
        self.dqclass = cast("Any", classes[0])
        self._sdqclass = cast("Any", classes[1]) if len(classes) > 1 else None
        queue = super()._dq()
        slots.clear()
        if file.counts:
            raise JobDirectoryError(
                f"{self.dqdir} holds requests that {global_object_name(self.pqclass)} would not"
                " serve; set SCHEDULER_PRIORITY_QUEUE to one of Scrapy's own"
            )
        return queue

    def _dqdir(self, jobdir: str | None) -> str | None:
        """Return the path of the requests; nothing is made yet."""
        return str(Path(jobdir, "requests.sqlite")) if jobdir else None

    def _read_dqs_state(self, dqdir: str) -> Any:
        """Return the stored priorities in the form the priority queue starts with."""
        counts = cast("RequestFile", self._file).counts
        if not issubclass(cast("type", self.pqclass), DownloaderAwarePriorityQueue):
            return sorted({priority for _, priority, _ in counts})
        state: dict[str, set[int]] = {}
        for slot, priority, _ in counts:
            state.setdefault(slot, set()).add(priority)
        return {slot: sorted(priorities) for slot, priorities in state.items()}

    def _dqpush(self, request: Request) -> bool:
        if not super()._dqpush(request):
            return False
        if self._file is not None:
            self._unreleased += self._fingerprints(request)
        return True

    def _mqpush(self, request: Request) -> None:
        super()._mqpush(request)
        if self._file is not None:
            self._in_flight.keep(request, self._fingerprints(request))

    def _dqpop(self) -> Request | None:
        try:
            return super()._dqpop()
        except Exception as error:  # noqa: BLE001 - a damaged row may raise anything
            self._fail(error)
            return None

    def _leave_out(self, request: Request, error: Exception) -> None:
        """Go on without `request`; what it may have come from stays in the job."""
        logger.error(
            "Cannot schedule %(request)s: %(error)s. The requests in progress stay in the job, and"
            " are repeated when it is resumed.",
            {"request": request, "error": error},
            exc_info=error,
            extra={"spider": self.spider},
        )
        self._in_flight.keep(request, [])
        if not request.dont_filter:
            self._bloom.forget(request)

    def _fingerprints(self, request: Request) -> list[bytes]:
        """Return what the filter may hold of `request` when it is safe."""
        if request.dont_filter:
            return []
        fingerprint = self._bloom.fingerprint(request)
        return [fingerprint] if fingerprint in self._bloom.held else []

    def _acknowledge(self, request: Request, file: RequestFile) -> None:
        if is_in_progress(cast("Any", self.crawler).engine, request):
            return
        for job in self._in_flight.finish(request):
            self._unreleased += job.fingerprints
            if job.row is not None:
                file.delete(job.row)

    def _commit_later(self) -> None:
        if self._timer is None and not self._failed:
            # the idle spider commits too, so a timer, not the next request; there is
            # none without a reactor, as in a script
            with suppress(RuntimeError):
                self._timer = call_later(self.commit_seconds, self._commit_now)

    def _commit_now(self) -> None:
        self._timer = None
        self._commit()
        if len(self._in_flight):
            self._commit_later()

    def _commit(self) -> None:
        """Acknowledge what is finished and make everything durable. Never raises."""
        file = cast("RequestFile", self._file)
        if self._failed:
            return
        self._handed_out = 0
        try:
            for request in self._in_flight:
                self._acknowledge(request, file)
            released = self._unreleased
            if file.changed:
                file.commit(released)
        except Exception as error:  # noqa: BLE001 - whatever fails below, the crawl goes on
            self._fail(error)
            return
        self._unreleased = []
        self._bloom.release(released)

    def _fail(self, error: Exception) -> None:
        """Stop acknowledging, and close the spider."""
        if self._failed:
            return
        self._failed = True
        logger.error(
            "The requests in %(path)s failed: %(error)s. Closing the spider; the job stays as it"
            " was at the last commit. Remove the cause, then resume it.",
            {"path": self.dqdir, "error": error},
            exc_info=error,
            extra={"spider": self.spider},
        )
        self._bloom.close_spider("bloom_error")
        with suppress(Exception):
            cast("RequestFile", self._file).rollback()
