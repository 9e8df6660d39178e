"""How far a job is: in the stats, and in `requests.sqlite` for others to see while it runs."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from ..dupefilter.local import BloomDupeFilter
    from ..job.ledger import Ledger
    from .request_file import RequestFile

KEPT_SECONDS = 60
"""So much of the past is kept, to tell how fast the job is."""
COUNTED = {
    "pages": "response_received_count",
    "items": "item_scraped_count",
    "duplicates": "dupefilter/filtered",
    "retries": "retry/count",
}
"""What is taken from the stats of others."""
FILTER_FIGURES = ("filter_items", "filter_capacity", "filter_layers", "filter_bytes")


class Progress:
    """Takes part in the commits of `ledger`: notes in one a second, and in the last one, how
    far the job is. `pending` counts the requests that wait, in memory too."""

    seconds = 1.0

    def __init__(
        self,
        crawler: Crawler,
        file: RequestFile,
        ledger: Ledger,
        dupefilter: BloomDupeFilter,
        *,
        pending: Callable[[], int],
    ) -> None:
        self._crawler = crawler
        self._file = file
        self._ledger = ledger
        self._dupefilter = dupefilter
        self._pending = pending
        self._began = self._noted = time.time()
        ledger.participants.append(self)

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Note it if it is time. Raises sqlite3.Error, OSError."""
        if self._ledger.stopped:
            return  # the filter is closed
        if self._ledger.ends or not 0 <= time.time() - self._noted < self.seconds:
            self._note()

    def after_commit(self) -> None:
        """Do nothing."""

    def _note(self) -> None:
        self._noted = time.time()
        stats = self._crawler.stats
        books = set_stats(self._crawler, self._ledger, self._pending(), in_commit=True)
        figures: dict[str, Any] = {"began": self._began, **books}
        figures.update({name: stats.get_value(stat, 0) for name, stat in COUNTED.items()})
        figures |= self._of_filter()
        # a clock that was set back must not leave a future behind
        self._file.execute(
            "DELETE FROM progress WHERE time < ? OR time >= ?",
            (self._noted - KEPT_SECONDS, self._noted),
        )
        self._file.execute("INSERT INTO progress VALUES (?, ?)", (self._noted, json.dumps(figures)))

    def _of_filter(self) -> dict[str, float]:
        found = self._dupefilter.filter
        capacity = sum(layer.capacity for layer in found.layers)
        figures = (len(found), capacity, len(found.layers), found.nbytes)
        return dict(zip(FILTER_FIGURES, figures, strict=True))


def set_stats(
    crawler: Crawler, ledger: Ledger, pending: int, *, in_commit: bool = False
) -> dict[str, float]:
    """Set what can be alerted on in the stats of `crawler`, and return it; `in_commit` counts
    the commit that it becomes durable with."""
    books = {
        "pending": pending,
        "in_flight": ledger.in_flight,
        "failed": ledger.store.failed,
        "commits": ledger.commits + in_commit,
        "commit_seconds_max": round(ledger.slowest_commit, 6),
        "bytes": ledger.store.nbytes,
    }
    for name, value in books.items():
        crawler.stats.set_value(f"scheduler/{name}", value)
    return books
