"""Rounds of a job: from the first fetch of the start pages until all that came of them is
stored, over as many starts of the process as it takes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from pathlib import Path

    from scrapy.crawler import Crawler

    from ..job.ledger import Ledger
    from ..scrapy_compat import StartMiddleware
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

    The feeds set `awaits_feeds` before the spider is open, and `feeds_stored` ends the round
    when all are stored. They write through `file`, which stays open until the job's session
    closes, and make that durable with `commit`. The functions of `at_end` are called in the
    transaction that ends the round.
    """

    def __init__(self, file: RequestFile, commit: Callable[[], object]) -> None:
        self.file = file
        self.commit = commit
        """Make what was written through `file` durable. Raises sqlite3.Error."""
        self.awaits_feeds = False
        self.at_end: list[Callable[[], None]] = []
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

    def forget_index_pages(self) -> None:
        """Forget the index pages of the round, since failures of their descendants are not tracked
        now. Raises sqlite3.Error."""
        if self.file.query("SELECT 1 FROM delta_lists LIMIT 1"):
            self.file.execute("DELETE FROM delta_lists")

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


@runtime_checkable
class RoundFeeds(Protocol):
    """The feeds of a round: an extension of the crawler, which is a part of the job's session
    until they are stored."""

    start_items: StartMiddleware
    """Goes into the way of what `Spider.start()` yields."""
    all_stored: bool
    """True when the crawl has ended and all feeds hold what they should."""

    @property
    def is_in_place(self) -> bool:
        """True if each feed is a file that gets the items when they are final."""

    def look(self, round_: Round, directory: Path) -> object:
        """Raise FeedError if a feed of the round cannot go on; change nothing."""

    def attach(
        self,
        ledger: Ledger,
        round_: Round,
        directory: Path,
        *,
        repeats: bool = False,
        stores_empty: bool = True,
    ) -> None:
        """Take part in the commits of `ledger`. Raises FeedError as `look` does."""


def feeds_of(crawler: Crawler) -> RoundFeeds | None:
    """Return the extension that keeps the feeds of rounds, None without one."""
    with suppress(RuntimeError):  # there are no extensions in a script
        return crawler.get_extension(RoundFeeds)  # type: ignore[type-abstract]
    return None
