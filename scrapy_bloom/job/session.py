"""One crawl's use of its job directory, from locking it to releasing it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from ..jobdir import JobDirectory

if TYPE_CHECKING:
    from collections.abc import Callable

    from scrapy.crawler import Crawler

_ATTRIBUTE = "scrapy_bloom_session"


def session_of(crawler: Crawler) -> Session:
    """Return the session of `crawler`, the same one at each call. It is an attribute of the
    crawler, and not in a table: a crawler that never closes releases its job as garbage."""
    attributes = vars(crawler)
    if _ATTRIBUTE not in attributes:
        attributes[_ATTRIBUTE] = Session(JobDirectory.of(crawler.settings.get("JOBDIR")))
    session: Session = attributes[_ATTRIBUTE]
    return session


class Session:
    """Owns the lock of a job `directory` while parts of a crawl use it: the dupefilter, the
    scheduler, the feeds. The first to begin makes and locks the directory, and the last to end
    closes the job, in this order: the functions of `at_close`, newest first; that of `put_last`,
    the store; the lock. A function that raises does not stop the rest."""

    def __init__(self, directory: JobDirectory | None) -> None:
        self.directory = directory
        self._lock = ExitStack()
        self._parts: list[object] = []
        self._closers: list[Callable[[], None]] = []

    def begin(self, part: object) -> None:
        """Let `part` use the job. Without JOBDIR there is nothing to lock. Raises
        FilterLockedError if another crawl has the job, OSError."""
        if not self._parts and self.directory is not None:
            self.directory.make()
            self._lock.enter_context(self.directory.locked())
        self._parts.append(part)

    def at_close(self, function: Callable[[], None]) -> None:
        """Call `function` when the last part has ended, before the functions that are there."""
        self._closers.append(function)

    def put_last(self, function: Callable[[], None]) -> None:
        """Call `function` after all others, and before the lock is released."""
        self._closers.insert(0, function)

    def end(self, part: object) -> None:
        """End the use by `part`; the last one closes the job. Ending twice is fine."""
        if part not in self._parts:
            return
        self._parts.remove(part)
        if not self._parts:
            with ExitStack() as closing:  # unwinds from the newest
                closing.push(self._lock.pop_all())
                for function in self._closers:
                    closing.callback(function)
                self._closers.clear()

    def abandon(self) -> None:
        """Release the lock of a crawl whose start is refused. Calls no function."""
        self._lock.close()
        self._parts.clear()
        self._closers.clear()
