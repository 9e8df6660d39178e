"""The status of a job, as its process has noted it in `requests.sqlite`, and as the file has it."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from ..amounts import without_user
from ..job.figures import (
    COUNTED,
    SLOTS,
    Costly,
    Figures,
    Sample,
    State,
    longest_held,
    with_rates,
)
from ..jobdir import UNFINISHED, JobDirectory
from .job_file import check_header, reading
from .progress import OF_FILTER, ROUND_COUNTS, Waiting, held_in
from .records import REASONS
from .rounds import KEPT, OVER, RUNNING, TO_BE_STORED

if TYPE_CHECKING:
    pass

PENDING_BY_SLOT = (
    "SELECT name, SUM(number), COUNT(*) OVER () FROM (SELECT slot AS id, COUNT(*) AS number"
    " FROM request WHERE state = 0 GROUP BY slot UNION ALL SELECT slot, COUNT(*) FROM request"
    " WHERE state > 0 AND state IN (2, 5, ?) GROUP BY slot) CROSS JOIN slot USING (id)"
    " GROUP BY id ORDER BY 2 DESC LIMIT ?"
)
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


class JobState(NamedTuple):
    """The state of a job, its `round` (None before the first) and the number of its failed
    requests. With `to_be_stored` only the storing of feeds is missing to the end of the round."""

    state: State
    round: int | None
    failed: int
    to_be_stored: bool = False


def waiting_in(job: Path) -> Waiting:
    """Return what waits in `job`. Raises RequestFileError."""
    with reading(JobDirectory(job).requests, or_empty=True) as connection:
        return Waiting.of(connection.execute)


class JobStatus:
    """The figures of the job in the directory `job`. Its methods raise RequestFileError."""

    def __init__(self, job: Path) -> None:
        self._job = job
        self._path = JobDirectory(job).requests
        self._slots = Costly(_pending_by_slot)
        self._feeds = Costly(_feeds)
        self._unfinished = Costly(_unfinished)
        self._reasons = Costly(_reasons)

    def figures(self) -> Figures:
        """Return the figures that were noted last, and what the file itself tells now."""
        is_running = JobDirectory(self._job).is_locked
        now = time.time()
        with reading(self._path) as connection:
            state = _state(connection, is_running)
            samples = _samples(connection)
            by_slot, slots = self._slots.of((connection, is_running))
            feeds = self._feeds.of(connection)
            waiting = Waiting.of(connection.execute)
            held = held_in(connection.execute)
            unfinished = None if is_running else self._unfinished.of(connection)
            of_round = connection.execute(ROUND_COUNTS).fetchone()
            log = self._path.with_name(f"{self._path.name}-wal")
            sizes = [path.stat() for path in (self._path, log) if path.exists()]
            at, last = samples[-1] if samples else (now, {})
            last = {**last, **_of_this_start(of_round, last.get("of_earlier_starts"))}
            if not is_running:
                last |= {"pending": unfinished, "in_flight": 0}
            figures = {
                "time": now,
                "state": state.state,
                "round": state.round,
                "seconds": max(0.0, (now if is_running else at) - last["began"])
                if samples
                else None,
                **{name: last.get(name) for name in (*COUNTED, *_OF_LEDGER, *OF_FILTER)},
                **{f"round_{name}": n for name, n in zip(COUNTED, of_round, strict=True)},
                "feeds": [{"uri": without_user(uri), "items": count} for uri, count in feeds],
                "failed": state.failed,
                **waiting._asdict(),
                "held_slots": longest_held(held),
                "pending_by_slot": by_slot,
                "slots": slots,
                "failed_by_reason": self._reasons.of(connection),
                "file_bytes": sizes[0].st_size,
                "log_bytes": sum(stat.st_size for stat in sizes[1:]),
                "seconds_since_commit": max(0.0, now - max(stat.st_mtime for stat in sizes)),
            }
            return with_rates(cast("Figures", figures), samples)


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
        return _unfinished(connection)


def _unfinished(connection: sqlite3.Connection) -> int:
    return int(connection.execute(COUNT_UNFINISHED).fetchone()[0])


def _state(connection: sqlite3.Connection, is_running: bool) -> JobState:
    (clean,) = connection.execute("SELECT clean FROM job").fetchone()
    is_empty = not connection.execute(UNFINISHED).fetchone()
    number, phase = None, OVER if is_empty else RUNNING
    for found in connection.execute("SELECT number, phase FROM rounds"):
        number, phase = found
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


def _of_this_start(
    of_round: Sequence[int], of_earlier_starts: Sequence[int] | None
) -> dict[str, int]:
    """Return what this start has counted up to its last commit, which may be newer than its last
    figures."""
    counts = zip(COUNTED, of_round, of_earlier_starts or (), strict=False)
    # a round that has just begun is not in the figures yet
    return {name: now - before for name, now, before in counts if now >= before}


def _feeds(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Return each feed of the round, and how many final items it has."""
    return connection.execute(_FEEDS).fetchall()


def _pending_by_slot(file: tuple[sqlite3.Connection, bool]) -> tuple[dict[str, int], int]:
    """Return the numbers of pending requests in the fullest slots, and the number of slots. In the
    file of a job that does not run what is claimed is pending."""
    connection, is_running = file
    rows = connection.execute(PENDING_BY_SLOT, (2 if is_running else 1, SLOTS)).fetchall()
    return {slot: count for slot, count, _ in rows}, rows[0][2] if rows else 0


def _reasons(connection: sqlite3.Connection) -> dict[str, int]:
    return dict(connection.execute(REASONS).fetchall())
