"""The failed requests of a job, in `requests.sqlite`."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from ..errors import RequestFileError
from ..job.codec import Stored, url_and_method
from ..job.failed_request import ALL, CAPPED, Choice, FailedRequest
from ..jobdir import JobDirectory
from . import schema
from .job_file import RequestFile, check_header, connect, reading
from .rounds import REOPEN

_COLUMNS = ", ".join(FailedRequest._fields)
_CHOSEN = "failed.id IN (SELECT value FROM json_each(:chosen))"
_CARRIED = f"slot != '' AND failed.id IN carried AND {_CHOSEN}"
# the next start asks them as far as its budget allows
_RETRY_CARRIED = (
    f"INSERT INTO budget SELECT DISTINCT NULL, slot, 0 FROM failed WHERE {_CARRIED}"  # noqa: S608 - no input
    " ON CONFLICT DO NOTHING",
    "INSERT INTO capped SELECT NULL, budget.id, priority, start, 1, request"  # noqa: S608 - no input
    f" FROM failed JOIN budget USING (slot) WHERE {_CARRIED} ORDER BY failed.id",
)
_RETRY = (
    # a request with a row of its own gets it again, and no other does
    "INSERT INTO requests SELECT"  # noqa: S608 - no input
    " COALESCE(unreadable.id, ROW_NUMBER() OVER (ORDER BY failed.id)"
    " + MAX(COALESCE((SELECT MAX(id) FROM requests), 0),"
    " COALESCE((SELECT MAX(id) FROM unreadable), 0), COALESCE((SELECT MAX(id) FROM later), 0))),"
    " slot, priority, start, 0, format, request"
    " FROM failed LEFT JOIN unreadable ON record = failed.id"
    f" WHERE {_CHOSEN} AND NOT ({_CARRIED}) ORDER BY failed.id"
)
# what a start makes pending: by an order, by BLOOM_RETRY_FAILED (?1), or since it can be read; and
# what another one, which was killed, has made pending
_HAS_ROOM = (
    "COALESCE({pushed}, 0) < COALESCE((SELECT value FROM json_each(?2) WHERE key = {slot}),"
    " (SELECT value FROM json_each(?2) WHERE key = '*'), 9e18)"
)
_PUSHED = "(SELECT pushed FROM budget WHERE budget.slot = failed.slot)"
_COMING_BACK = (
    "SELECT slot, request FROM requests UNION ALL"  # noqa: S608 - no input
    " SELECT slot, request FROM failed WHERE id IN (SELECT record FROM unreadable)"
    " OR ?1 AND request != x'' AND (slot = '' OR id NOT IN carried OR"
    f" {_HAS_ROOM.format(pushed=_PUSHED, slot='failed.slot')})"
    " UNION ALL SELECT slot, request FROM capped JOIN budget ON budget.id = budget"
    f" WHERE (retried OR ?1) AND {_HAS_ROOM.format(pushed='pushed', slot='slot')}"
)
FAILED_AND_CAPPED = "SELECT (SELECT COUNT(*) FROM failed) + (SELECT COUNT(*) FROM capped)"
_CAPPED = "SELECT capped.id, slot, request FROM capped JOIN budget ON budget.id = budget ORDER BY 1"
_DELETE = f"DELETE FROM failed WHERE {_CHOSEN}"  # noqa: S608 - no input


class SQLiteFailedStore:
    """The FailedStore of the job in a directory.

    Reads also while the job runs, and changes nothing then. Any method may raise
    RequestFileError; `retry` and `drop` raise FilterLockedError while the job runs.
    """

    def __init__(self, job: Path) -> None:
        self._directory = JobDirectory(job)

    def requests(self, choice: Choice = ALL) -> list[FailedRequest]:
        """Return the chosen ones, oldest first."""
        rows = self._query(f"SELECT {_COLUMNS} FROM failed ORDER BY id")  # noqa: S608 - no input
        found = [*map(FailedRequest._make, rows)]
        if choice.has_reason(CAPPED):
            found += (each for _, each in _capped(self._query))
        return [each for each in found if choice.includes(each.reason, each.url)]

    def by_reason(self) -> dict[str, int]:
        """Return how many there are for each reason, most first."""
        return dict(
            self._query(
                "SELECT reason, COUNT(*) FROM (SELECT reason FROM failed"  # noqa: S608 - no input
                f" UNION ALL SELECT '{CAPPED}' FROM capped) GROUP BY reason ORDER BY 2 DESC"
            )
        )

    def retry(self, choice: Choice = ALL) -> int:
        """Make the chosen ones pending again; return how many. Capped ones, and with a budget those
        of earlier rounds, are so at the next start, as far as the budget allows."""
        return self._take(choice, *_RETRY_CARRIED, _RETRY, REOPEN)

    def drop(self, choice: Choice = ALL) -> int:
        """Forget the chosen ones; return how many."""
        return self._take(choice)

    def _query(self, statement: str) -> Sequence[tuple[Any, ...]]:
        with reading(self._directory.requests, or_empty=True) as connection:
            return connection.execute(statement).fetchall()

    def _has(self, choice: Choice) -> bool:
        """Return True if any is chosen. Cost: reads none unless URLs decide."""
        if choice.urls:
            return bool(self.requests(choice))
        return any(choice.includes(reason, "") for reason in self.by_reason())

    def _take(self, choice: Choice, *before: str) -> int:
        """Run these statements and delete the chosen ones, all of it or nothing; return how
        many."""
        if not self._has(choice):
            return 0
        with self._directory.locked(), writing(self._directory.requests) as connection:
            return _take_capped(connection, choice, before) + _take(connection, choice, before)


class OpenFailedStore(SQLiteFailedStore):
    """The FailedStore of the job whose `file` is open; `count` is the number of its requests.

    Changes are durable with the next commit. Any method may raise sqlite3.Error.
    """

    def __init__(self, file: RequestFile) -> None:
        self._file = file
        self.count = int(file.query("SELECT COUNT(*) FROM failed")[0][0])

    def add(self, row: int, request: bytes, failed: FailedRequest, slot: str | None = None) -> None:
        """Copy the pending request of `row` here, as `request`, which is asked at a retry: in
        `slot`, or in that of the row."""
        self._file.execute(
            "INSERT INTO failed SELECT NULL, COALESCE(?, slot), priority, start, '',"
            " ?, ?, ?, ?, ?, ?, ?, ?, ? FROM requests WHERE id = ?",
            (slot, request, *failed, row),
        )
        self.count += 1

    def add_lost(self, slot: str, failed: FailedRequest) -> None:
        """Add the record of a request of `slot` that cannot be stored."""
        self._file.execute(
            "INSERT INTO failed VALUES (NULL, ?, 0, 0, '', x'', ?, ?, ?, ?, ?, ?, ?, ?)",
            (slot, *failed),
        )
        self.count += 1

    def add_unreadable(self, row: int, why: str) -> None:
        """Copy the request of `row` here, which cannot be read back; it is pending again when
        the file is opened."""
        (found,) = self._file.query("SELECT slot, request FROM requests WHERE id = ?", (row,))
        known = url_and_method(Stored(*found))
        self.add(row, found[1], FailedRequest.unreadable(*known, why))
        self._file.execute("INSERT INTO unreadable VALUES (?, last_insert_rowid())", (row,))

    def _query(self, statement: str) -> Sequence[tuple[Any, ...]]:
        return self._file.query(statement)

    def _take(self, choice: Choice, *before: str) -> int:
        """Raises ValueError where rows are popped already."""
        _take_capped(self._file, choice, before)
        count = _take(self._file, choice, before) if self.count else 0
        if count:
            self._file.recount()
            self.count -= count
        return count


def coming_back(
    file: RequestFile, limits: Mapping[str, int], *, retry: bool
) -> Iterator[tuple[Any, ...]]:
    """Give slots and payloads of the kept requests that a start makes pending: with `retry` all,
    but for what is over the budget. Raises sqlite3.Error."""
    return file.iterate(_COMING_BACK, (retry, json.dumps(limits)))


def _capped(query: schema.Query) -> Iterator[tuple[int, FailedRequest]]:
    """Yield the requests over the budget with their numbers, oldest first."""
    for number, slot, payload in query(_CAPPED):
        known = url_and_method(Stored(slot, payload))
        yield number, FailedRequest(*known, CAPPED, None, None, 0, 0.0, None)


def _take_capped(
    file: RequestFile | sqlite3.Connection, choice: Choice, before: Sequence[str]
) -> int:
    """Mark the chosen requests over the budget as retried, or delete them; return how many."""
    if not choice.urls:
        condition, chosen = str(int(choice.includes(CAPPED, ""))), []
    else:
        query = file.query if isinstance(file, RequestFile) else file.execute
        condition = "id IN (SELECT value FROM json_each(:chosen))"
        chosen = [row for row, each in _capped(query) if choice.includes(CAPPED, each.url)]
    what = "UPDATE capped SET retried = 1" if before else "DELETE FROM capped"
    changed = file.execute(f"{what} WHERE {condition}", {"chosen": json.dumps(chosen)})
    return changed.rowcount


def _take(file: RequestFile | sqlite3.Connection, choice: Choice, before: Sequence[str]) -> int:
    # what could not be serialized cannot be retried
    having = " WHERE request != x''" if before else ""
    rows = file.execute(f"SELECT id, reason, url FROM failed{having}")  # noqa: S608 - no input
    chosen = [row for row, reason, url in rows if choice.includes(reason, url)]
    if chosen:
        for statement in (*before, _DELETE):
            file.execute(statement, {"chosen": json.dumps(chosen)})
    return len(chosen)


@contextmanager
def writing(path: Path) -> Iterator[sqlite3.Connection]:
    """Give a connection to the file of a stopped job, of the current version, whose changes are
    durable at the end of the context: all of them or none. Raises RequestFileError."""
    check_header(path)
    try:
        with closing(connect(path, "rw")) as connection:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("BEGIN IMMEDIATE")
            schema.check(connection)
            yield connection
            connection.execute("COMMIT")
    except sqlite3.Error as error:
        raise RequestFileError(
            f"{path} cannot be changed: {error}; it was left as it is"
        ) from error
