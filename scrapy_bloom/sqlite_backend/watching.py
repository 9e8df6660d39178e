"""What a job has committed of how far it is, read by another process while it runs."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from ..jobdir import JobDirectory
from .failed_store import SQLiteFailedStore
from .inspection import job_state, reading
from .progress import FILTER_FIGURES

RATE_SECONDS = 10.0
"""Over so much of the past rates are taken."""
SLOTS = 10
"""So many slots are told, those with the most requests."""
COSTLY_SHARE = 0.005
"""What has to read many rows may take this share of the time."""

Source = TypeVar("Source")
Result = TypeVar("Result")


class Watch:
    """Reads how far `job` is, as often as it is asked. Changes nothing."""

    def __init__(self, job: Path) -> None:
        self._job = job
        self._path = JobDirectory(job).requests
        self._slots = Costly(_pending_by_slot)
        self._failed = SQLiteFailedStore(job)
        self._reasons = Costly(SQLiteFailedStore.by_reason)

    def figures(self) -> dict[str, Any]:
        """Return the figures of now, and what follows from them. What is not known is None.
        Raises RequestFileError."""
        state = job_state(self._job)
        now = time.time()
        is_running = state is not None and state.state == "running"
        with reading(self._path) as connection:
            samples = _samples(connection)
            by_slot, slots = self._slots.of(connection)
        last = samples[-1][1] if samples else {}
        growth = rates_of(samples) if is_running else {}
        return {
            "time": now,
            "state": None if state is None else state.state,
            "round": None if state is None else state.round,
            "seconds": _since(samples, now if is_running else None),
            **{name: last.get(name) for name in _TOTALS},
            "failed": 0 if state is None else state.failed,
            **{f"{name}_per_second": growth.get(name) for name in RATED},
            "seconds_left": seconds_to(last.get("pending"), growth.get("pending"), -1),
            "pending_by_slot": by_slot,
            "slots": slots,
            "failed_by_reason": self._reasons.of(self._failed),
            **{name: last.get(name) for name in FILTER_FIGURES},
            "seconds_to_growth": seconds_to(_room(last), growth.get("filter_items"), 1),
            **self._sizes(now),
        }

    def _sizes(self, now: float) -> dict[str, float]:
        log = self._path.with_name(f"{self._path.name}-wal")
        found = [path.stat() for path in (self._path, log) if path.exists()]
        return {
            "file_bytes": found[0].st_size,
            "log_bytes": sum(stat.st_size for stat in found[1:]),
            "seconds_since_commit": max(0.0, now - max(stat.st_mtime for stat in found)),
        }


_TOTALS = (
    "pages",
    "items",
    "duplicates",
    "retries",
    "pending",
    "in_flight",
    "commits",
    "commit_seconds_max",
)
RATED = ("pages", "items", "pending")


class Costly(Generic[Source, Result]):
    """Asks again what takes long only so often that it takes a small share of the time."""

    def __init__(self, ask: Callable[[Source], Result]) -> None:
        self._ask = ask
        self._due = 0.0
        self._known: list[Result] = []

    def of(self, source: Source) -> Result:
        """Return what is known of `source`, which is always the same."""
        began = time.monotonic()
        if began >= self._due or not self._known:
            self._known = [self._ask(source)]
            ended = time.monotonic()
            self._due = ended + (ended - began) / COSTLY_SHARE
        return self._known[0]


def rates_of(samples: Sequence[tuple[float, dict[str, Any]]]) -> dict[str, float]:
    """Return how much each figure has grown a second, lately; `samples` come with their
    times, oldest first."""
    if len(samples) < 2:
        return {}
    (last_at, last) = samples[-1]
    # a clock may have been set back
    earlier = [each for each in samples[:-1] if each[0] < last_at]
    recent = [each for each in earlier if last_at - each[0] <= RATE_SECONDS]
    if not earlier:
        return {}
    (at, first) = recent[0] if recent else earlier[-1]
    return {
        name: (last[name] - first[name]) / (last_at - at)
        for name in (*RATED, "filter_items")
        if name in last and name in first
    }


def seconds_to(distance: float | None, rate: float | None, sign: int) -> float | None:
    """Return how long `distance` takes at a rate of that sign, None for any other."""
    if distance is None or rate is None or rate * sign <= 0:
        return None
    return distance / (rate * sign)


def _samples(connection: sqlite3.Connection) -> list[tuple[float, dict[str, Any]]]:
    """Return what was noted in the last start of the job, oldest first."""
    if not _has(connection, "progress"):
        return []
    rows = connection.execute("SELECT time, figures FROM progress ORDER BY time")
    samples = [(at, json.loads(figures)) for at, figures in rows]
    return [each for each in samples if each[1]["began"] == samples[-1][1]["began"]]


def _since(samples: list[tuple[float, dict[str, Any]]], now: float | None) -> float | None:
    if not samples:
        return None
    at, last = samples[-1]
    return max(0.0, (at if now is None else now) - float(last["began"]))


def _room(last: dict[str, Any]) -> float | None:
    """Return how many requests the filter takes before it grows."""
    if "filter_capacity" not in last:
        return None
    return max(0.0, float(last["filter_capacity"] - last["filter_items"]))


def _pending_by_slot(connection: sqlite3.Connection) -> tuple[dict[str, int], int]:
    """Return how many requests wait in the fullest slots, and how many slots there are."""
    rows = connection.execute(
        "SELECT slot, COUNT(*), COUNT(*) OVER () FROM requests WHERE popped = 0 GROUP BY slot"
        " ORDER BY 2 DESC LIMIT ?",
        (SLOTS,),
    ).fetchall()
    return {slot: count for slot, count, _ in rows}, rows[0][2] if rows else 0


def _has(connection: sqlite3.Connection, table: str) -> bool:
    """Return True unless the file is of a version before that table."""
    return bool(
        connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    )
