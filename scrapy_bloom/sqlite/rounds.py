"""The rounds of a job: each lasts from the opening of the spider until no requests are left and all
feeds are stored, over any number of starts of the process."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .job_file import RequestFile

RUNNING = "running"
TO_BE_STORED = "to be stored"
KEPT = "over but for failed requests"
OVER = "over"
ANY_KEPT = (
    # what waits at the end of a round waits for dead hosts
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM request WHERE state = 0)"
    " OR EXISTS (SELECT 1 FROM request WHERE state > 0 AND state IN (2, 3, 4))"
)
IS_KEPT = (
    f"SELECT 1 FROM rounds WHERE phase = '{KEPT}'"  # noqa: S608 - no input
    " UNION ALL SELECT 1 FROM request WHERE state > 0 AND state > 2 LIMIT 1"
)
round_opened = object()  # signal: a round has begun, or goes on, and no commit has that yet


class Round:
    """The current round of a job, `number` from 1; `is_resumed` if an earlier start of the process
    has begun it.

    It begins when the spider is opened, and ends when start() is exhausted, no requests are left,
    and all feeds are stored, at a close with any reason but `shutdown`. Then a new round begins,
    unless a kept request (failed, capped or unreadable) is pending again: then the round that is
    over is `RUNNING` again. What has waited for dead hosts is asked in the new one.

    The feeds set `awaits_feeds` before the spider is open, and `feeds_stored` ends the round. They
    write through `file`, which stays open until the job's session closes, and make that durable
    with `commit`. The functions of `at_begin` and `at_end` are called in the transaction that
    begins a new round, or ends one; those of `at_start` in that of any start, behind them.

    That of a worker's feeds belongs to a `crawl`, to `of_crawl` before this start, whose requests
    are not in `file`: it is kept when it is over, and `goes_on` if asked to, and both are the same.
    """

    def __init__(
        self,
        file: RequestFile,
        commit: Callable[[], object],
        crawl: str = "",
        *,
        goes_on: bool = False,
    ) -> None:
        self.file, self.crawl = file, crawl
        self.commit = commit
        """Make what was written through `file` durable. Raises sqlite3.Error."""
        self.awaits_feeds = self._has_begun = False
        self.at_start: list[Callable[[], object]] = []
        self.at_begin: list[Callable[[], object]] = []
        self.at_end: list[Callable[[], None]] = []
        # requests of Scrapy's scheduler belong to a round, too
        none = (0, OVER, crawl) if file.is_empty else (1, RUNNING, crawl)
        self._phase: str
        ((self.number, self._phase, self.of_crawl),) = file.query("SELECT * FROM rounds") or [none]
        if self._phase == KEPT and self.of_crawl == crawl and goes_on:
            self._phase = RUNNING
        self.follows_kept = self._phase == KEPT
        """True if the previous round ended with requests that were never retried."""
        self.is_resumed = self._phase != OVER and not self.follows_kept
        self.number += not self.is_resumed

    @property
    def is_over(self) -> bool:
        """True if the round has ended, and no kept request can make it go on."""
        return self._phase == OVER

    def begin(self) -> None:
        """Record, once, that the spider is open, or that a request comes before it. Raises
        sqlite3.Error."""
        if self._has_begun:
            return
        self._has_begun = True
        is_stored = self._phase == TO_BE_STORED and not self.awaits_feeds and self.file.is_empty
        if is_stored or self.follows_kept:
            self._leave()
            self.number += is_stored
            self.file.execute("UPDATE rounds SET phase = ?", (OVER,))
            self.file.commit(None)  # before BLOOM_DELTA removes the filter: no retry goes on in it
        self._enter(RUNNING)
        for function in ([] if self.is_resumed else self.at_begin) + self.at_start:
            function()

    def complete(self) -> None:
        """Record that start() is exhausted and no requests are left. Raises sqlite3.Error."""
        if self.awaits_feeds:
            self._enter(TO_BE_STORED)
        else:
            self._end()

    def feeds_stored(self) -> bool:
        """Record that all feeds are stored. Return True if the round cannot continue. Raises
        sqlite3.Error."""
        if self._phase == TO_BE_STORED:
            self._end()
            self.commit()
        return self._phase == OVER

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self.file.execute("DELETE FROM rounds")
        values = (self.number, phase, self.crawl)
        self.file.execute("INSERT INTO rounds VALUES (?, ?, ?)", values)

    def _end(self) -> None:
        if self.crawl or self.file.query(ANY_KEPT):
            self._enter(KEPT)
            return
        self._leave()
        self._enter(OVER)

    def _leave(self) -> None:
        for function in self.at_end:
            function()
        self.file.execute("DELETE FROM taken WHERE source <= 0")  # not what came of rows
        self.is_resumed = self.follows_kept = False
