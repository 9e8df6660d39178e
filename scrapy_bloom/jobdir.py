"""A job directory (JOBDIR): what lies in it, under which names, and which process has it."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .files import is_held, locked_by

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler

_LOCK = "bloom.lock"


class JobDirectory:
    """The job directory at `path`; nothing need be there yet."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.filter = path / "bloom"
        """The directory of the filter, a file for each of its layers."""
        self.requests = path / "requests.sqlite"
        """The requests of DurableScheduler that are not done, an SQLite database."""
        self.orders = path / "orders"
        """What an operator has ordered done while the job runs, a directory."""
        self.worker_feeds = path / "worker-feeds.sqlite"
        """What the feeds of a worker of RedisDurableScheduler have got, an SQLite database."""
        self.seen_file = path / "requests.seen"
        """What Scrapy's RFPDupeFilter has seen."""
        self.scrapy_queue = path / "requests.queue"
        """The pending requests of Scrapy's own scheduler, a directory."""

    def locked(self) -> AbstractContextManager[None]:
        """Lock the job for the length of a context; the lock also ends with the process. Raises
        FilterLockedError if another crawl or command has it."""
        return locked_by(self.path / _LOCK)

    @property
    def is_locked(self) -> bool:
        """True while a process has the job."""
        return is_held(self.path / _LOCK)

    @property
    def has_filter(self) -> bool:
        """True if the job has run with BloomDupeFilter."""
        return any(each.stem.isdecimal() for each in self.filter.glob("*.bloom"))

    @property
    def has_only_seen_file(self) -> bool:
        """True for a job that has run with Scrapy's RFPDupeFilter so far."""
        return self.seen_file.exists() and not self.has_filter and not self.requests.exists()


def session_of(crawler: Crawler) -> Session:
    """Return the session of `crawler`, in the directory that JOBDIR names; the same one at each
    call. It is an attribute of the crawler, and not in a table: a crawler that never closes
    releases its job as garbage."""
    path = crawler.settings.get("JOBDIR")
    new = Session(JobDirectory(Path(path)) if path else None)
    session: Session = vars(crawler).setdefault("scrapy_bloom_session", new)
    return session


def feeds_of(crawler: Crawler) -> Any:
    """Return the extension with the feeds of the job, None without one that Scrapy has taken."""
    feeds = session_of(crawler).feeds
    return feeds and crawler.get_extension(type(feeds))


class Session:
    """Owns the lock of a job `directory` while parts of a crawl use it: the dupefilter, the
    scheduler, the feeds. The first to begin makes and locks the directory, and the last to end
    closes the job, in this order: the functions of `closers`, newest first, that of the store as
    the first in the list; the lock. A function that raises does not stop the rest."""

    def __init__(self, directory: JobDirectory | None) -> None:
        self.directory = directory
        self._lock = ExitStack()
        self._parts: list[object] = []
        self.closers: list[Callable[[], None]] = []
        self.feeds: Any = None
        """The DurableFeedExporter of the crawl, None without one."""

    def begin(self, part: object) -> None:
        """Let `part` use the job. Without JOBDIR there is nothing to lock. Raises
        FilterLockedError if another crawl has the job, OSError."""
        if not self._parts and self.directory is not None:
            self.directory.path.mkdir(parents=True, exist_ok=True)
            self._lock.enter_context(self.directory.locked())
        self._parts.append(part)

    def end(self, part: object) -> None:
        """End the use by `part`; the last one closes the job. Ending twice is fine."""
        if part not in self._parts:
            return
        self._parts.remove(part)
        if not self._parts:
            with self._lock.pop_all(), ExitStack() as closing:  # unwinds from the newest
                for function in self.closers:
                    closing.callback(function)
                self.closers.clear()

    def abandon(self) -> None:
        """Release the lock of a crawl whose start is refused. Calls no function."""
        self._lock.close()
        self._parts.clear()
        self.closers.clear()
