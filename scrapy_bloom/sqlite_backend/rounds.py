"""Rounds of a job: from the first fetch of the start pages until all that came of them is
stored, over as many starts of the process as it takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .request_file import RequestFile

RUNNING = "running"
TO_BE_STORED = "to be stored"
KEPT = "over but for failed requests"
OVER = "over"


class Round:
    """The round that a job is in, `number` from 1; `is_resumed` if this start of the
    process goes on with one that is not over.

    It begins when `Spider.start()` is asked for the first time, and is over when that was
    exhausted, no request is pending or in flight, and all feeds are stored; the reason
    with which the spider closed does not matter. The next start of the process, or what
    is left of this one, is in a new round. But while requests are kept as failed, a round
    that is over can go on: whoever makes any of them pending again makes it `RUNNING`.

    A feed exporter sets `awaits_feeds` before the spider is open. It writes through
    `file`, and takes part in the ledger's commits. The scheduler's close then leaves the
    job to it: `file` stays open and the job locked until it calls `close`, which it must.
    `commit` makes durable what it has written; `feeds_stored` says that all feeds are
    stored. `at_end` is called in the transaction that ends the round, `at_close` before the job
    is let go, and must not raise.
    """

    def __init__(self, file: RequestFile, commit: Callable[[], object]) -> None:
        self.file = file
        self.commit = commit
        """Make what was written through `file` durable. Raises sqlite3.Error."""
        self._close: Callable[[], None] = lambda: None
        self.awaits_feeds = False
        self.at_end: list[Callable[[], None]] = []
        self.at_close: list[Callable[[], None]] = []
        self.number = 1
        # what a job of 0.1.0 or of Scrapy's scheduler has left belongs to a round, too
        self._phase = OVER if file.is_empty else RUNNING
        for number, phase in file.query("SELECT number, phase FROM rounds"):
            self.number, self._phase = number, phase
        self.follows_kept = self._phase == KEPT
        """True if there was a round before that has waited for failed requests in vain, and
        what is left of it is still there."""
        self.is_resumed = self._phase != OVER and not self.follows_kept
        if not self.is_resumed and file.query("SELECT 1 FROM rounds"):
            self.number += 1

    @property
    def is_over(self) -> bool:
        """True if nothing is missing, or failed requests only."""
        return self._phase in (OVER, KEPT)

    @property
    def is_to_be_stored(self) -> bool:
        """True if nothing is missing to the end of the round but that feeds are stored."""
        return self._phase == TO_BE_STORED

    @property
    def has_failed(self) -> bool:
        """True if requests are kept as failed. Raises sqlite3.Error."""
        return bool(self.file.query("SELECT 1 FROM failed LIMIT 1"))

    def begin(self) -> None:
        """Note that start pages are fetched now. Raises sqlite3.Error."""
        if self.is_to_be_stored and not self.awaits_feeds and self.file.is_empty:
            self._leave()
            self.number += 1
        elif self.follows_kept:
            self._leave()
        self._enter(RUNNING)

    def complete(self) -> None:
        """Note that start() was exhausted and nothing is pending or in flight: without
        feeds, this is the end of the round. Raises sqlite3.Error."""
        if self.awaits_feeds:
            self._enter(TO_BE_STORED)
        else:
            self._end()

    def feeds_stored(self) -> bool:
        """Note that all feeds hold what they should, which ends a round that was waiting
        for it. Return True if it does not go on in any case. Raises sqlite3.Error."""
        if self.is_to_be_stored:
            self._end()
            self.commit()
        return self._phase == OVER

    def forget_lists(self) -> None:
        """Let no list count for the memory between crawls: nobody watches what comes of it
        now. Raises sqlite3.Error."""
        if self.file.query("SELECT 1 FROM delta_lists LIMIT 1"):
            self.file.execute("DELETE FROM delta_lists")

    def hand_over(self, *, commit: Callable[[], object], close: Callable[[], None]) -> None:
        """Leave the job to whoever closes it, when the scheduler has closed."""
        self.commit = commit
        self._close = close

    def close(self) -> None:
        """Let go of the job, after the scheduler's close. Never raises."""
        for function in self.at_close:
            function()
        self._close()

    def _enter(self, phase: str) -> None:
        self._phase = phase
        self.file.execute("DELETE FROM rounds")
        self.file.execute("INSERT INTO rounds VALUES (?, ?)", (self.number, phase))

    def _end(self) -> None:
        if self.has_failed:
            self._enter(KEPT)
            return
        self._leave()
        self._enter(OVER)
        self.number += 1

    def _leave(self) -> None:
        for function in self.at_end:
            function()
        self.is_resumed = self.follows_kept = False
