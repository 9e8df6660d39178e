"""Moves pending requests from Scrapy's own queues to the request file."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shlex import quote
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from scrapy.utils.misc import build_from_crawler, load_object

from ..crawl.delays import take_delay
from ..errors import JobDirectoryError
from ..files import sync_directory
from ..migration.scrapy_job import not_imported, why_unclean

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from scrapy.pqueues import ScrapyPriorityQueue

    from ..crawl.queue_order import QueueSettings
    from ..jobdir import JobDirectory
    from .budget import JobBudget
    from .job_file import RequestFile
    from .request_store import SqliteStore


class ScrapyQueues:
    """The queues of Scrapy's scheduler in a job directory, after a clean stop.

    `state` is the initial state of its priority queue, empty if no request is pending.
    """

    def __init__(self, job: JobDirectory) -> None:
        self._job, self._folder = job, job.scrapy_queue
        self._copy = job.path / "requests.queue.copy"
        self._moved = job.path / "requests.queue.moved"
        state_file = self._folder / "active.json"
        self.state: Any = ()
        self._stamp = ""
        try:
            self.state = json.loads(state_file.read_text(encoding="utf-8"))
            self._stamp = str(state_file.stat().st_mtime_ns)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as error:
            raise self._refused(error) from error

    def look(self, crawler: Crawler, settings: QueueSettings) -> None:
        """Raise JobDirectoryError for a request that `move` could not read, or pickles without
        BLOOM_PICKLE; change nothing in the job. Cost: reads a temporary copy of the queues."""
        if self.state:
            if not settings.pickles:
                raise JobDirectoryError(
                    f"{self._folder} holds pending requests of Scrapy's own scheduler, which are"
                    " stored by pickle, and BLOOM_PICKLE is False: start the job once"
                    " with BLOOM_PICKLE = True, which takes them over, or use a new JOBDIR"
                )
            with TemporaryDirectory() as folder:
                self._read(Path(folder, "queue"), crawler, lambda request: None)

    def move(
        self, file: RequestFile, crawler: Crawler, store: SqliteStore, budget: JobBudget | None
    ) -> int:
        """Move the pending requests to the `store` in `file`, in Scrapy's order, and count them in
        the `budget`. Return their number.

        Popping destroys Scrapy's files, so it is done on a copy; the originals are renamed after
        the commit. Whenever the process dies, either the originals or `file` are complete. Raises
        JobDirectoryError for unreadable queues, OSError, sqlite3.Error.
        """

        def take(request: Request) -> None:
            delay = take_delay(request)
            slot, rank, payload = store.record_of(request)
            due = None if delay is None else time.time() + delay
            store.records.push(slot, rank, payload, due, behind=True)
            if budget is not None:
                budget.count(budget.names(slot, request.url))

        count = 0
        if self._stamp != file.taken_over:
            shutil.rmtree(self._copy, ignore_errors=True)
            count = self._read(self._copy, crawler, take)
            file.execute("UPDATE job SET taken_over = ?", (self._stamp,))
            file.commit()
        self._put_aside()
        return count

    def _read(self, copy: Path, crawler: Crawler, take: Callable[[Request], object]) -> int:
        shutil.copytree(self._folder, copy)
        settings = crawler.settings
        start = settings["SCHEDULER_START_DISK_QUEUE"]
        try:
            stored: ScrapyPriorityQueue = build_from_crawler(
                load_object(settings["SCHEDULER_PRIORITY_QUEUE"]),
                crawler,
                downstream_queue_cls=load_object(settings["SCHEDULER_DISK_QUEUE"]),
                key=str(copy),
                startprios=self.state,
                start_queue_cls=load_object(start) if start else None,
            )
            try:
                wanted = len(stored)
                for count in range(wanted):
                    request = stored.pop()
                    if request is None:
                        raise ValueError(f"only {count} of {wanted} requests can be read")
                    take(request)
                return wanted
            finally:
                stored.close()
        except Exception as error:
            raise self._refused(error) from error

    def _put_aside(self) -> None:
        shutil.rmtree(self._moved, ignore_errors=True)
        self._folder.rename(self._moved)
        sync_directory(self._folder.parent)
        with suppress(OSError):
            shutil.rmtree(self._copy)

    def _refused(self, error: Exception) -> JobDirectoryError:
        if self._job.has_only_seen_file and (unclean := why_unclean(self._job)):
            return not_imported(self._job, unclean)
        return JobDirectoryError(
            f"{self._folder} holds pending requests of Scrapy's own queues, which cannot be taken"
            f" over ({error}): finish that job with SCHEDULER set to"
            " 'scrapy.core.scheduler.Scheduler'; where that cannot read them either, use a new"
            " JOBDIR, or go on without them, whose pages are not fetched then:"
            f" mv {quote(str(self._folder))} {quote(f'{self._folder}.torn')}"
        )
