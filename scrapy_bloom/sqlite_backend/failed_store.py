"""The requests of a job that have failed: rows of `requests.sqlite`, which a job and its user
look at, make pending again, and forget."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import NamedTuple

from ..errors import RequestFileError
from ..job.codec import url_and_method
from ..job.failure import FailedRequest
from ..jobdir import JobDirectory
from . import schema
from .inspection import reading
from .request_file import RequestFile, check_header, connect
from .rounds import KEPT, RUNNING

_RETRY = (
    # a request with a row of its own gets it again, and no other does
    "INSERT INTO requests SELECT COALESCE(unreadable.id, ROW_NUMBER() OVER (ORDER BY failed.id)"
    " + MAX(COALESCE((SELECT MAX(id) FROM requests), 0),"
    " COALESCE((SELECT MAX(id) FROM unreadable), 0))),"
    " slot, priority, start, 0, format, request"
    " FROM failed LEFT JOIN unreadable ON record = failed.id WHERE {} ORDER BY failed.id"
)
_REOPEN = f"UPDATE rounds SET phase = '{RUNNING}' WHERE phase = '{KEPT}'"  # noqa: S608 - no input
_COLUMNS = ", ".join(FailedRequest._fields)


class Choice(NamedTuple):
    """Which failed requests are meant: those whose reason matches one of these globs, and
    whose URL one of those; all, if there are none."""

    reasons: Sequence[str] = ()
    urls: Sequence[str] = ()

    @property
    def condition(self) -> str:
        """The choice as SQL."""
        parts = [
            "(" + " OR ".join([f"{column} GLOB ?"] * len(globs)) + ")"
            for column, globs in (("reason", self.reasons), ("url", self.urls))
            if globs
        ]
        return " AND ".join(parts) or "1"

    @property
    def values(self) -> tuple[str, ...]:
        """What belongs to the question marks in it."""
        return (*self.reasons, *self.urls)

    def means(self, requests: Iterable[FailedRequest]) -> Iterator[bool]:
        """Yield for each of `requests`, which are in no file, whether it is meant."""
        if self == ALL:
            yield from (True for _ in requests)
            return
        question = f"SELECT 1 FROM (SELECT ? AS reason, ? AS url) WHERE {self.condition}"  # noqa: S608
        with closing(sqlite3.connect(":memory:")) as connection:  # whose globs they are
            for each in requests:
                values = (each.reason, each.url, *self.values)
                yield connection.execute(question, values).fetchone() is not None


ALL = Choice()


class FailedRows:
    """The failed requests in an open `file`, changed in its commits. Every method may raise
    sqlite3.Error."""

    def __init__(self, file: RequestFile) -> None:
        self._file = file
        self.count = int(file.query("SELECT COUNT(*) FROM failed")[0][0])

    def add(self, row: int, request: bytes, failed: FailedRequest) -> None:
        """Copy a row of the pending ones here, with `request` as it is asked once more."""
        self._file.execute(
            "INSERT INTO failed SELECT NULL, slot, priority, start, format,"
            " ?, ?, ?, ?, ?, ?, ?, ?, ? FROM requests WHERE id = ?",
            (request, *failed, row),
        )
        self.count += 1

    def add_unreadable(self, row: int, why: str) -> None:
        """Copy a row here that cannot be read back; it is pending again when the file is opened."""
        ((stored,),) = self._file.query("SELECT request FROM requests WHERE id = ?", (row,))
        self.add(row, stored, FailedRequest.unreadable(*url_and_method(stored), why))
        self._file.execute("INSERT INTO unreadable VALUES (?, last_insert_rowid())", (row,))

    def retry(self) -> int:
        """Make all of them pending again; return how many. To be called before the rows of
        `file` are counted by anybody."""
        count = self._file.execute(_RETRY.format(ALL.condition)).rowcount
        if count:
            self._file.execute("DELETE FROM failed")
            self._file.execute(_REOPEN)
            self._file.recount()
        return count

    def by_reason(self) -> dict[str, int]:
        """Return how many there are for each reason, most first."""
        return dict(
            self._file.query("SELECT reason, COUNT(*) FROM failed GROUP BY reason ORDER BY 2 DESC")
        )


def failed_requests(job: Path, choice: Choice = ALL) -> list[FailedRequest]:
    """Return the chosen requests of `job` that have failed, oldest first; reads only, also
    while the job runs. Raises RequestFileError."""
    path = JobDirectory(job).requests
    if not check_header(path):
        return []
    with reading(path) as connection:
        if schema.version(connection) < schema.WITH_FAILED:
            return []
        rows = connection.execute(
            f"SELECT {_COLUMNS} FROM failed WHERE {choice.condition} ORDER BY id",  # noqa: S608
            choice.values,
        )
        return [FailedRequest(*row) for row in rows]


def retry_failed(job: Path, choice: Choice = ALL) -> int:
    """Let the next start of `job` ask the chosen requests once more; return how many. Raises
    FilterLockedError while the job runs, RequestFileError."""
    return _change(job, choice, _RETRY.format(choice.condition), reopen=True)


def drop_failed(job: Path, choice: Choice = ALL) -> int:
    """Forget the chosen requests of `job` that have failed; return how many. Raises as
    `retry_failed` does."""
    return _change(job, choice)


def _change(job: Path, choice: Choice, *before: str, reopen: bool = False) -> int:
    """Run these statements, and delete what is chosen, all of it or nothing; with `reopen`
    the round goes on."""
    if not failed_requests(job, choice):
        return 0
    lock = JobDirectory(job).lock()
    try:
        with _writing(JobDirectory(job).requests) as connection:
            for statement in before:
                connection.execute(statement, choice.values)
            if reopen:
                connection.execute(_REOPEN)
            statement = f"DELETE FROM failed WHERE {choice.condition}"  # noqa: S608 - no input
            return connection.execute(statement, choice.values).rowcount
    finally:
        lock.release(remove=True)


@contextmanager
def _writing(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(connect(path, "rw")) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            schema.upgrade(connection, schema.version(connection))
            yield connection
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise RequestFileError(
            f"{path} cannot be changed: {error}; it was left as it is"
        ) from error
