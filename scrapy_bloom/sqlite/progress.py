"""What the process of a job notes of it in `requests.sqlite`, and what waits there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import TYPE_CHECKING

from ..crawl.delays import DEAD
from ..crawl.ledger import CommitHook
from ..crawl.stats import COUNTED, counts_of, set_stats
from .schema import HOLDS

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from ..crawl.ledger import Ledger
    from ..dupefilter import BloomDupeFilter
    from .job_file import RequestFile
    from .rounds import Round
    from .schema import Query

KEPT_SECONDS = 70
"""The file keeps this part of the past, for the rates."""
COUNT_DELAYED = "SELECT COUNT(*), MIN(due) FROM request WHERE state > 0 AND state = 2"
ROUND_COUNTS = f"SELECT {', '.join(COUNTED)} FROM round_counts"  # noqa: S608 - no input
OF_FILTER = ("filter_items", "filter_capacity", "filter_layers", "filter_bytes")


class Progress(CommitHook):
    """A commit hook of `ledger` that notes the figures of the job, in the first commit, in one a
    second and in the last one, and in each commit what the round has counted. `pending` counts the
    requests that wait, in memory too."""

    seconds = 1.0

    def __init__(
        self,
        crawler: Crawler,
        file: RequestFile,
        ledger: Ledger,
        dupefilter: BloomDupeFilter,
        round_: Round,
        *,
        pending: Callable[[], int],
    ) -> None:
        self._crawler = crawler
        self._file = file
        self._ledger = ledger
        self._dupefilter = dupefilter
        self._pending = pending
        self._began = time.time()
        # the first commit notes: up to then the figures are those of an earlier start
        self._noted = 0.0
        self._counted = self._of_earlier_starts = file.query(ROUND_COUNTS)[0]
        ledger.commit_hooks.append(self)
        round_.at_begin.append(self._begin_round)

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Note the figures if a second has passed. Raises sqlite3.Error, OSError."""
        if self._ledger.stopped:
            return  # the filter is closed
        self._count()
        if self._ledger.ends or not 0 <= time.time() - self._noted < self.seconds:
            self._note()

    def _begin_round(self) -> None:
        self._noted = 0.0  # its filter may be another
        self._of_earlier_starts = tuple(-now for now in counts_of(self._crawler).values())

    def _count(self) -> None:
        """Note what the round has counted."""
        counts = zip(self._of_earlier_starts, counts_of(self._crawler).values(), strict=True)
        counted = tuple(map(sum, counts))
        if counted != self._counted:
            self._file.execute(
                "UPDATE round_counts SET (pages, items, duplicates, retries) = (?, ?, ?, ?)",
                counted,
            )
            self._counted = counted

    def _note(self) -> None:
        self._noted = time.time()
        seen = self._dupefilter._seen
        assert seen is not None
        capacities = seen.filter.capacities
        # the fingerprints of this commit enter the filter after it
        of_filter = (len(seen), sum(capacities), len(capacities), seen.filter.nbytes)
        figures = {
            "began": self._began,
            **set_stats(self._crawler, self._ledger, self._pending(), in_commit=True),
            **counts_of(self._crawler),
            **dict(zip(OF_FILTER, of_filter, strict=True)),
            "of_earlier_starts": self._of_earlier_starts,
        }
        # a clock that was set back must not leave a future behind
        self._file.execute(
            "DELETE FROM progress WHERE time < ? OR time >= ?",
            (self._noted - KEPT_SECONDS, self._noted),
        )
        self._file.execute("INSERT INTO progress VALUES (?, ?)", (self._noted, json.dumps(figures)))


def waiting_in(ask: Query) -> tuple[int, float | None, int]:
    """Return how many requests are delayed, seconds until the next of them is due, None if no time
    is known, and how many slots are held."""
    ((later, due),) = ask(COUNT_DELAYED)
    is_known = due is not None and due < inf  # infinite until a release
    return later, max(0.0, due - time.time()) if is_known else None, len(held_in(ask))


def held_in(ask: Query) -> dict[str, float]:
    """Return the held slots with the seconds that are left, `inf` until the release, and those of
    dead hosts, which are asked then."""
    now = time.time()
    return {
        slot: max(0.0, until - now)
        for slot, until, times in ask(HOLDS)
        if until > now or times >= DEAD
    }
