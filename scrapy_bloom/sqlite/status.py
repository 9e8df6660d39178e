"""The status of a job: what its process notes of it in `requests.sqlite`, and what others read."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..crawl.choice import Filter
from ..crawl.figures import (
    COUNTED,
    SLOTS,
    Costly,
    Figures,
    Sample,
    State,
    counts_of,
    longest_held,
    set_stats,
    with_rates,
)
from ..crawl.ledger import CommitHook
from ..crawl.records import KEPT as KEPT_STATES
from ..jobdir import JobDirectory
from ..texts import without_user
from .job_file import UNFINISHED, check_header, reading
from .rounds import KEPT, OVER, RUNNING, TO_BE_STORED
from .schema import HOLDS

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler

    from ..crawl.choice import Counts
    from ..crawl.ledger import Ledger
    from ..dupefilter import BloomDupeFilter
    from .job_file import RequestFile
    from .listing import Listing
    from .rounds import Round
    from .schema import Query

KEPT_SECONDS = 70
"""The file keeps this part of the past, for the rates."""
COUNT_DELAYED = "SELECT COUNT(*), MIN(due) FROM request WHERE state > 0 AND state = 2"
ROUND_COUNTS = f"SELECT {', '.join(COUNTED)} FROM round_counts"  # noqa: S608 - no input
OF_FILTER = ("filter_items", "filter_capacity", "filter_layers", "filter_bytes")
COUNT_UNFINISHED = (
    "SELECT (SELECT COUNT(*) FROM request WHERE state = 0)"
    " + (SELECT COUNT(*) FROM request WHERE state > 0 AND state IN (1, 2, 5))"
)
COUNT_KEPT = "SELECT COUNT(*) FROM request WHERE state > 0 AND state IN (3, 4)"
_FEEDS = (
    "SELECT template, COALESCE((SELECT SUM(items)"
    # a batch is forgotten after the next one
    " + (MIN(number) - 1) * COALESCE(json_extract(options, '$.batch_item_count'), 0)"
    " FROM batches WHERE feed = feeds.id), 0)"
    " + (SELECT COUNT(*) FROM items WHERE feed = feeds.id AND request IS NULL)"
    " FROM feeds ORDER BY id"
)
_OF_LEDGER = ("pending", "in_flight", "commits", "commit_seconds_max")


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
    """Return how many requests of a job are delayed, seconds until the next of them is due, None if
    no time is known, and how many slots are held."""
    ((later, due),) = ask(COUNT_DELAYED)
    is_known = due is not None and due < inf  # infinite until a release
    return later, max(0.0, due - time.time()) if is_known else None, len(held_in(ask))


def held_in(ask: Query) -> dict[str, float]:
    """Return the held slots of a job, with the seconds of their holds that are left, `inf` until
    the release."""
    now = time.time()
    return {slot: until - now for slot, until, _ in ask(HOLDS) if until > now}


class JobState(NamedTuple):
    """The state of a job, its `round` (None before the first) and the number of its failed
    requests. With `to_be_stored` only the storing of feeds is missing to the end of the round."""

    state: State
    round: int | None
    failed: int
    to_be_stored: bool = False


class JobView(NamedTuple):
    """A job at one moment: its `state`, how many of its requests are pending, delayed or
    dispatched, and `waiting_in` it. The first two are None without `requests.sqlite`."""

    state: JobState | None = None
    unfinished: int | None = None
    waiting: tuple[int, float | None, int] = 0, None, 0


def job_view(job: Path) -> JobView:
    """Return the view of `job`. Changes nothing. Raises RequestFileError."""
    directory = JobDirectory(job)
    if not check_header(directory.requests):
        return JobView()
    is_running = directory.is_locked
    with reading(directory.requests) as connection:
        (unfinished,) = connection.execute(COUNT_UNFINISHED).fetchone()
        waiting = waiting_in(connection.execute)
        return JobView(_state(connection, is_running), unfinished, waiting)


class JobStatus:
    """The figures of the job in the directory `job`. Its methods raise RequestFileError."""

    def __init__(self, job: Path) -> None:
        self._job = job
        self._path = JobDirectory(job).requests
        self._pending: Costly[Listing, Counts] = Costly(lambda found: found.count(Filter()))
        kept = Filter(KEPT_STATES)
        self._kept: Costly[Listing, Counts] = Costly(lambda found: found.count(kept, "reason"))
        self._feeds: Costly[sqlite3.Connection, list[tuple[str, int]]]
        self._feeds = Costly(lambda connection: connection.execute(_FEEDS).fetchall())

    def figures(self) -> Figures:
        """Return the figures that were noted last, and what the file itself tells now."""
        from .listing import Listing  # which no crawl needs

        is_running = JobDirectory(self._job).is_locked
        now = time.time()
        with reading(self._path) as connection:
            state = _state(connection, is_running)
            samples = _samples(connection)
            listing = Listing(connection.execute, is_running=is_running)
            pending = self._pending.of(listing)
            later, next_due, held = waiting_in(connection.execute)
            of_round = connection.execute(ROUND_COUNTS).fetchone()
            log = self._path.with_name(f"{self._path.name}-wal")
            sizes = [path.stat() for path in (self._path, log) if path.exists()]
            at, last = samples[-1] if samples else (now, {})
            # up to the last commit, which may be newer; a round that has just begun is not noted
            counts = zip(COUNTED, of_round, last.get("of_earlier_starts") or (), strict=False)
            last = {**last, **{name: n - before for name, n, before in counts if n >= before}}
            if not is_running:
                last |= {"pending": pending.states.total(), "in_flight": 0}
            figures = {
                "time": now,
                "state": state.state,
                "round": state.round,
                "seconds": max(0.0, (now if is_running else at) - last["began"])
                if samples
                else None,
                **{name: last.get(name) for name in (*COUNTED, *_OF_LEDGER, *OF_FILTER)},
                **{f"round_{name}": n for name, n in zip(COUNTED, of_round, strict=True)},
                "feeds": [
                    {"uri": without_user(uri), "items": count}
                    for uri, count in self._feeds.of(connection)
                ],
                "failed": state.failed,
                "later": later,
                "next_due": next_due,
                "held": held,
                "held_slots": longest_held(held_in(connection.execute)),
                "pending_by_slot": dict(pending.by.most_common(SLOTS)),
                "slots": len(pending.by),
                "failed_by_reason": dict(self._kept.of(listing).by.most_common()),
                "file_bytes": sizes[0].st_size,
                "log_bytes": sum(stat.st_size for stat in sizes[1:]),
                "seconds_since_commit": max(0.0, now - max(stat.st_mtime for stat in sizes)),
            }
            return with_rates(figures, samples)


def _state(connection: sqlite3.Connection, is_running: bool) -> JobState:
    (clean,) = connection.execute("SELECT clean FROM job").fetchone()
    is_empty = not connection.execute(UNFINISHED).fetchone()
    last = connection.execute("SELECT number, phase FROM rounds").fetchone()
    number, phase = last or (None, OVER if is_empty else RUNNING)
    (failed,) = connection.execute(COUNT_KEPT).fetchone()
    state: State = "finished" if phase in (OVER, KEPT) else "stopped"
    if is_running:
        state = "running"
    elif not clean:
        state = "killed"
    return JobState(state, number, failed, phase == TO_BE_STORED and is_empty)


def _samples(connection: sqlite3.Connection) -> list[Sample]:
    """Return what the last process of the job has noted, oldest first."""
    rows = connection.execute("SELECT time, figures FROM progress ORDER BY time")
    samples: list[tuple[float, dict[str, Any]]] = [(at, json.loads(text)) for at, text in rows]
    return [each for each in samples if each[1]["began"] == samples[-1][1]["began"]]
