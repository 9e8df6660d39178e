"""The status of a job: what others read of it in `requests.sqlite`."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ..crawl.choice import Counts, Filter
from ..crawl.figures import SLOTS, Costly, Figures, Sample, State, longest_held, with_rates
from ..crawl.records import KEPT as KEPT_STATES
from ..crawl.stats import COUNTED
from ..jobdir import JobDirectory
from ..texts import without_user
from .job_file import UNFINISHED, check_header
from .listing import Listing, held_in, reading, waiting_in
from .progress import OF_FILTER
from .rounds import KEPT, OVER, RUNNING, TO_BE_STORED
from .schema import OF_DEAD_HOSTS

COUNT_UNFINISHED = (
    "SELECT (SELECT COUNT(*) FROM request WHERE state = 0)"  # noqa: S608 - no input
    " + (SELECT COUNT(*) FROM request WHERE state > 0 AND state IN (1, 2, 5))"
    f" - {OF_DEAD_HOSTS}"
)
COUNT_KEPT = (
    "SELECT (SELECT COUNT(*) FROM request WHERE state > 0 AND state IN (3, 4))"  # noqa: S608 - no input
    f" + {OF_DEAD_HOSTS}"
)
_FEEDS = (
    "SELECT facts, json_extract(facts, '$.items')"
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
        is_running = JobDirectory(self._job).is_locked
        now = time.time()
        with reading(self._path) as connection:
            state = _state(connection, is_running)
            samples = _samples(connection)
            listing = Listing(connection.execute, is_running=is_running)
            pending = self._pending.of(listing)
            later, next_due, held = waiting_in(connection.execute)
            log = self._path.with_name(f"{self._path.name}-wal")
            sizes = [self._path.stat()]
            with suppress(FileNotFoundError):
                sizes.append(log.stat())
            at, last = samples[-1] if samples else (now, {})
            of_round = last.get("of_round") or dict.fromkeys(COUNTED, 0)
            if not is_running:
                last = {**last, "pending": pending.states.total(), "in_flight": 0}
            figures = {
                "time": now,
                "state": state.state,
                "round": state.round,
                "seconds": max(0.0, (now if is_running else at) - last["began"])
                if samples
                else None,
                **{name: last.get(name) for name in (*COUNTED, *_OF_LEDGER, *OF_FILTER)},
                **{f"round_{name}": of_round[name] for name in COUNTED},
                "feeds": [
                    {"uri": without_user(json.loads(facts)["template"]), "items": count}
                    for facts, count in self._feeds.of(connection)
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
