"""Reads the requests of a stopped job of DurableScheduler, to continue the crawl elsewhere. The job
is not changed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any, TypeVar

from ..errors import RequestFileError
from ..job.codec import Stored, stored_fields
from .job_file import reading
from .rounds import OVER
from .status import COUNT_DELAYED

T = TypeVar("T")

_DUE = "SELECT id, slot, payload, 0.0 AS due FROM request WHERE state <= 1 ORDER BY id"
DELAYED = (
    "SELECT id, slot, payload, due FROM request WHERE state > 0 AND state = 2 ORDER BY due, id"
)
_HOLDS = "SELECT name, until, times FROM slot WHERE times IS NOT NULL"
_FINAL = "SELECT COUNT(*) FROM items WHERE request IS NULL"
_NOT_STORED = (
    "SELECT COALESCE(SUM(items - COALESCE(json_extract(stored, '$.items'), 0)), 0) FROM batches"
    " WHERE state != 'stored' AND path GLOB '*feeds/[0-9]*.part'"
)


class StoppedJob:
    """The requests in the file at `path`, read through a `connection`.

    `pending` and `later` count those that are due and those that are not. `unreleased` are
    fingerprints of stored requests that may be missing in the filter. `failed` and `items` count
    what stays in the job: failed requests, and items that are in no feed yet.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self.pending = self._count("SELECT COUNT(*) FROM request WHERE state <= 1")
        self.later = self._count(COUNT_DELAYED)
        ((unreleased,),) = connection.execute("SELECT unreleased FROM job")
        self.unreleased = [bytes.fromhex(text) for text in json.loads(unreleased)]
        self.failed = self._count("SELECT COUNT(*) FROM request WHERE state > 2")
        self.items = self._count(_FINAL) + self._count(_NOT_STORED)

    def requests(self, move: Callable[[dict[str, Any]], T]) -> Iterator[T]:
        """Yield what `move` makes of the fields of each request that is due, oldest first, as
        `stored_fields` returns them. Raises RequestFileError for one that cannot be moved."""
        return (moved for moved, _ in self._read(_DUE, move))

    def delayed(self, move: Callable[[dict[str, Any]], T]) -> Iterator[tuple[T, float]]:
        """Yield the same of each other request, and when it is due (seconds since 1970), in that
        order. Raises as `requests` does."""
        return self._read(DELAYED, move)

    def holds(self) -> Iterator[tuple[str, float, int]]:
        """Yield each slot that is held, until when (seconds since 1970, infinite until its release)
        and how many times in a row."""
        for slot, until, times in self._connection.execute(_HOLDS):
            yield slot, inf if until is None else until, times

    def _read(self, rows: str, move: Callable[[dict[str, Any]], T]) -> Iterator[tuple[T, float]]:
        names = dict(self._connection.execute("SELECT id, name FROM slot").fetchall())
        for row, slot, payload, due in self._connection.execute(rows):
            try:
                moved = move(stored_fields(Stored(names[slot], payload)))
            except Exception as error:
                raise RequestFileError(
                    f"row {row} of {self._path} cannot be moved ({type(error).__name__}: {error});"
                    " start the job once more, which keeps it as failed if it cannot be read"
                ) from error
            yield moved, due

    def taken_start_requests(self) -> Iterator[tuple[bytes, int]]:
        """Yield (key, occurrence) of each start request that the round has taken, none after its
        end: the occurrence counts equal keys."""
        yield from self._connection.execute(
            "SELECT fingerprint, occurrence FROM taken_start_requests"
            " WHERE NOT EXISTS (SELECT 1 FROM rounds WHERE phase = ?)",
            (OVER,),
        )

    def _count(self, statement: str) -> int:
        return int(self._connection.execute(statement).fetchone()[0])


@contextmanager
def stopped_job(path: Path) -> Iterator[StoppedJob]:
    """Give the contents of the file at `path`, no requests if there is no file. Raises
    RequestFileError."""
    with reading(path, or_empty=True) as connection:
        yield StoppedJob(path, connection)
