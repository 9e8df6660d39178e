"""The status of a job: its process notes figures in `requests.sqlite`, and others read them."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..job.figures import (
    COUNTED,
    SLOTS,
    Costly,
    Figures,
    Sample,
    State,
    counts_of,
    set_stats,
    with_rates,
)
from ..job.ledger import CommitHook
from ..jobdir import JobDirectory
from . import schema
from .failed_store import FAILED_AND_CAPPED, SQLiteFailedStore
from .request_file import check_header, reading
from .rounds import KEPT, OVER, RUNNING, TO_BE_STORED

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.crawler import Crawler
    from typing_extensions import Self

    from ..dupefilter.local import BloomDupeFilter
    from ..job.ledger import Ledger
    from .request_file import RequestFile

KEPT_SECONDS = 60
"""The file keeps this part of the past, for the rates."""
_UNFINISHED = "SELECT 1 FROM requests UNION ALL SELECT 1 FROM later"
_COUNT_UNFINISHED = "SELECT (SELECT COUNT(*) FROM requests) + (SELECT COUNT(*) FROM later)"
_OF_LEDGER = ("pending", "in_flight", "commits", "commit_seconds_max")
_OF_FILTER = ("filter_items", "filter_capacity", "filter_layers", "filter_bytes")


class Progress(CommitHook):
    """A commit hook of `ledger` that notes the figures of the job, in one commit a second and in
    the last one. `pending` counts the requests that wait, in memory too."""

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
        ledger.commit_hooks.append(self)

    def before_commit(self, acknowledged: Sequence[Request]) -> None:
        """Note the figures if a second has passed. Raises sqlite3.Error, OSError."""
        if self._ledger.stopped:
            return  # the filter is closed
        if self._ledger.ends or not 0 <= time.time() - self._noted < self.seconds:
            self._note()

    def _note(self) -> None:
        self._noted = time.time()
        found = self._dupefilter.filter
        capacity = sum(layer.capacity for layer in found.layers)
        of_filter = (len(found), capacity, len(found.layers), found.nbytes)
        figures = {
            "began": self._began,
            **set_stats(self._crawler, self._ledger, self._pending(), in_commit=True),
            **counts_of(self._crawler),
            **dict(zip(_OF_FILTER, of_filter, strict=True)),
            "popped": self._file.popped_in_memory,
        }
        # a clock that was set back must not leave a future behind
        self._file.execute(
            "DELETE FROM progress WHERE time < ? OR time >= ?",
            (self._noted - KEPT_SECONDS, self._noted),
        )
        self._file.execute("INSERT INTO progress VALUES (?, ?)", (self._noted, json.dumps(figures)))


class JobState(NamedTuple):
    """The state of a job, its `round` (None before the first) and the number of its failed
    requests. With `to_be_stored` only the storing of feeds is missing to the end of the round."""

    state: State
    round: int | None
    failed: int
    to_be_stored: bool = False


class Waiting(NamedTuple):
    """How many requests of a job are `later`, seconds until the `next_due` of them (None if no time
    is known), and how many slots are `held`."""

    later: int = 0
    next_due: float | None = None
    held: int = 0

    @classmethod
    def of(cls, query: Callable[[str], Iterable[Sequence[Any]]]) -> Self:
        """Read the tables of a job."""
        ((later, due),) = query("SELECT COUNT(*), MIN(due) FROM later")
        now = time.time()
        held = [1 for (until,) in query("SELECT until FROM holds") if until is None or until > now]
        is_known = due is not None and due < inf  # infinite until a release
        return cls(later, max(0.0, due - now) if is_known else None, len(held))


def waiting_in(job: Path) -> Waiting:
    """Return what waits in `job`. Raises RequestFileError."""
    path = JobDirectory(job).requests
    if not check_header(path):
        return Waiting()
    with reading(path) as connection:
        return Waiting.of(connection.execute)


class JobStatus:
    """A Status of the job in the directory `job`. Its methods raise RequestFileError."""

    def __init__(self, job: Path) -> None:
        self._job = job
        self._path = JobDirectory(job).requests
        self._slots = Costly(_pending_by_slot)
        self._failed = SQLiteFailedStore(job)
        self._reasons = Costly(SQLiteFailedStore.by_reason)

    def figures(self) -> Figures:
        """Return the figures that were noted last, and what the file itself tells now."""
        check_header(self._path)
        is_running = JobDirectory(self._job).is_locked
        now = time.time()
        with reading(self._path) as connection:
            state = _state(connection, is_running)
            samples = _samples(connection)
            by_slot, slots = self._slots.of(connection)
            waiting = Waiting.of(connection.execute)
        at, last = samples[-1] if samples else (now, {})
        figures = {
            "time": now,
            "state": state.state,
            "round": state.round,
            "seconds": max(0.0, (now if is_running else at) - last["began"]) if last else None,
            **{name: last.get(name) for name in (*COUNTED, *_OF_LEDGER, *_OF_FILTER)},
            "failed": state.failed,
            **waiting._asdict(),
            "pending_by_slot": by_slot,
            "slots": slots,
            "failed_by_reason": self._reasons.of(self._failed),
            **self._sizes(now),
        }
        return with_rates(cast("Figures", figures), samples)

    def _sizes(self, now: float) -> dict[str, float]:
        log = self._path.with_name(f"{self._path.name}-wal")
        found = [path.stat() for path in (self._path, log) if path.exists()]
        return {
            "file_bytes": found[0].st_size,
            "log_bytes": sum(stat.st_size for stat in found[1:]),
            "seconds_since_commit": max(0.0, now - max(stat.st_mtime for stat in found)),
        }


def job_state(job: Path) -> JobState | None:
    """Return the state of `job`, None without `requests.sqlite`. Changes nothing. Raises
    RequestFileError."""
    directory = JobDirectory(job)
    if not check_header(directory.requests):
        return None
    is_running = directory.is_locked
    with reading(directory.requests) as connection:
        return _state(connection, is_running)


def unfinished_requests(job: Path) -> int | None:
    """Return the number of requests of `job` that are pending, delayed or dispatched, None without
    `requests.sqlite`. Raises RequestFileError."""
    path = JobDirectory(job).requests
    if not check_header(path):
        return None
    with reading(path) as connection:
        return int(connection.execute(_COUNT_UNFINISHED).fetchone()[0])


def _state(connection: sqlite3.Connection, is_running: bool) -> JobState:
    (clean,) = connection.execute("SELECT clean FROM job").fetchone()
    is_empty = not connection.execute(f"{_UNFINISHED} LIMIT 1").fetchone()
    number, phase, failed = None, OVER if is_empty else RUNNING, 0
    if schema.version(connection) >= schema.WITH_FAILED:
        for found in connection.execute("SELECT number, phase FROM rounds"):
            number, phase = found
        (failed,) = connection.execute(FAILED_AND_CAPPED).fetchone()
    state: State = "finished" if phase in (OVER, KEPT) else "stopped"
    if is_running:
        state = "running"
    elif not clean:
        state = "killed"
    return JobState(state, number, failed, phase == TO_BE_STORED and is_empty)


def _samples(connection: sqlite3.Connection) -> list[Sample]:
    """Return what the last process of the job has noted, oldest first."""
    if schema.version(connection) < schema.WITH_FAILED:
        return []
    rows = connection.execute("SELECT time, figures FROM progress ORDER BY time")
    samples: list[tuple[float, dict[str, Any]]] = [(at, json.loads(text)) for at, text in rows]
    return [each for each in samples if each[1]["began"] == samples[-1][1]["began"]]


def _pending_by_slot(connection: sqlite3.Connection) -> tuple[dict[str, int], int]:
    """Return the numbers of pending requests in the fullest slots, and the number of slots."""
    rows = connection.execute(
        "SELECT slot, COUNT(*), COUNT(*) OVER () FROM (SELECT slot FROM requests WHERE popped = 0"
        " UNION ALL SELECT slot FROM later) GROUP BY slot ORDER BY 2 DESC LIMIT ?",
        (SLOTS,),
    ).fetchall()
    return {slot: count for slot, count, _ in rows}, rows[0][2] if rows else 0
