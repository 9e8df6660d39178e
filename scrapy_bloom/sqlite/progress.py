"""What the process of a job notes of it in `requests.sqlite`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..crawl.ledger import CommitHook
from ..crawl.stats import COUNTED, counts_of, set_stats
from .job_file import DAMAGED

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from ..crawl.ledger import Ledger
    from ..dupefilter import BloomDupeFilter
    from .job_file import RequestFile
    from .rounds import Round

KEPT_SECONDS = 70
"""The file keeps this part of the past, for the rates."""
OF_FILTER = ("filter_items", "filter_capacity", "filter_layers", "filter_bytes")


@dataclass(eq=False)
class Progress(CommitHook):
    """A commit hook of `ledger` that notes the figures of the job in each commit, of which the file
    keeps the last one of each second. `pending` counts the requests that wait, in memory too."""

    crawler: Crawler
    file: RequestFile
    ledger: Ledger
    dupefilter: BloomDupeFilter
    round: Round
    pending: Callable[[], int]

    def __post_init__(self) -> None:
        self._began = time.time()
        self._of_earlier_starts = dict.fromkeys(COUNTED, 0)
        for (last,) in self.file.query("SELECT figures FROM progress ORDER BY time DESC LIMIT 1"):
            with suppress(*DAMAGED):  # it costs the counts
                self._of_earlier_starts = {n: int(json.loads(last)["of_round"][n]) for n in COUNTED}
        self.ledger.commit_hooks.append(self)
        self.round.at_begin.append(self._begin_round)

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Note the figures. Raises sqlite3.Error, OSError."""
        if self.ledger.stopped:
            return  # the filter is closed
        now, counts = time.time(), counts_of(self.crawler)
        seen = self.dupefilter._seen
        assert seen is not None
        capacities = seen.filter.capacities
        # the fingerprints of this commit enter the filter after it
        of_filter = (len(seen), sum(capacities), len(capacities), seen.filter.nbytes)
        figures = {
            "began": self._began,
            **set_stats(self.crawler, self.ledger, self.pending(), in_commit=True),
            **counts,
            **dict(zip(OF_FILTER, of_filter, strict=True)),
            "of_round": {name: n + self._of_earlier_starts[name] for name, n in counts.items()},
        }
        # a clock that was set back must not leave a future behind
        outdated = "DELETE FROM progress WHERE time < ? OR time >= ?"
        self.file.execute(outdated, (now - KEPT_SECONDS, int(now)))
        self.file.execute("INSERT INTO progress VALUES (?, ?)", (now, json.dumps(figures)))

    def _begin_round(self) -> None:
        self._of_earlier_starts = {name: -n for name, n in counts_of(self.crawler).items()}
