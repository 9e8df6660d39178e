"""The table of a delta store: `delta.sqlite`, which has the time at which each page was done.

Its rollback journal, not a write-ahead log, lets readers open it without a change to the directory.
Writers take turns: each transaction has a thousand rows at most. A writer that is killed leaves a
journal, which the next writer rolls back; readers refuse the file until then.

A row without a time is that of a page that is not done and has a digest, such as an index page.
Rows with a digest never expire: the page is compared when it is fetched again.

A mark counts if its time is at most a period away from now, before or after: a wrong clock costs
repetitions, not the table. For the same reason an expired row is removed only when it has been
expired for an eighth of the longest period, in which the clock was not set back.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import chain, islice
from math import inf
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ..errors import FilterFileError
from ..files import make_directory, privately
from ..sqlite_backend.request_file import connect
from ..sqlite_backend.schema import statements

if TYPE_CHECKING:
    from pathlib import Path

T = TypeVar("T")

TABLE = "delta.sqlite"
VERSION = 1
APPLICATION_ID = 0x53426C64
_AT_ONCE = 1000
"""Most rows of a transaction."""
_PAUSE = 0.001
"""Seconds between two transactions, for other writers."""
_PATIENCE = 10_000
"""Milliseconds to wait for a process that writes."""
_PAGES_AT_ONCE = 250
"""Pages of the file that a transaction with expired rows looks through, about."""
_TURNS = 8
"""Expired rows are looked for this many times in the longest period."""
_CACHE = -6000
"""Cache of a writer in KiB: more than the pages that a transaction changes."""

_MAKE = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    # seconds since the epoch, 16 bytes
    "CREATE TABLE pages (key BLOB PRIMARY KEY, time REAL, digest BLOB) WITHOUT ROWID",
    # one row; periods in seconds, NULL is for ever; `expiring` is since when what is expired waits
    "CREATE TABLE meta (version INTEGER NOT NULL, identity TEXT NOT NULL, longest REAL,"
    " expiring REAL)",
)
_ADD = (
    "INSERT INTO pages VALUES (:key, :time, :digest) ON CONFLICT DO UPDATE SET"
    " digest = CASE WHEN digest IS NOT NULL AND time > excluded.time AND time <= :now"
    " THEN digest ELSE COALESCE(excluded.digest, digest) END,"
    " time = CASE WHEN time > excluded.time AND time <= :now THEN time"
    " ELSE COALESCE(excluded.time, time) END"
)
_MERGE = (
    "INSERT INTO pages VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET digest ="
    " CASE WHEN excluded.time > COALESCE(time, -1) OR digest IS NULL"
    " THEN COALESCE(excluded.digest, digest) ELSE digest END,"
    " time = CASE WHEN excluded.time > COALESCE(time, -1) THEN excluded.time ELSE time END"
)


class Row(NamedTuple):
    """A page: `time` is None if it is not done, `digest` is that of its items."""

    key: bytes
    time: float | None
    digest: bytes | None = None


class UnfinishedWriteError(FilterFileError):
    """A writer was killed, and its journal is there."""


class Table:
    """The file in `directory`, which need not exist. Any method may raise FilterFileError.

    As of the opening, `count` is the number of pages that are done, `digests` of those with a
    digest, `total` of all rows; `oldest` and `newest` are the first and the last of the times,
    `nbytes` is the size of the file, `identity` the text about the fingerprinter, `longest` the
    longest period that a crawl has asked for.
    """

    def __init__(self, directory: Path) -> None:
        self.path = directory / TABLE
        self._connection: sqlite3.Connection | None = None
        self._is_writable = False
        self._forget()

    def _forget(self) -> None:
        self.count = self.digests = self.total = self.nbytes = 0
        self.oldest: float | None = None
        self.newest: float | None = None
        self.identity = ""
        self.longest = 0.0

    @property
    def is_open(self) -> bool:
        """True if there was a file to open."""
        return self._connection is not None

    def look(self) -> None:
        """Open the file read-only, if there is one. Raises UnfinishedWriteError."""
        self._open("ro")

    def roll_back(self) -> None:
        """Roll back what a writer that was killed has not finished."""
        self._open("rw")
        self.close()

    def until(self, key: bytes, period: float, now: float) -> float:
        """Return the time until which the page of `key` counts as done in the last `period`
        seconds, 0 if it does not. Cost: about 10 µs."""
        if self._connection is None:
            return 0.0
        with self._naming():
            row = self._connection.execute("SELECT time FROM pages WHERE key = ?", (key,))
            (when,) = row.fetchone() or (None,)
        return 0.0 if when is None or abs(now - when) > period else float(when) + period

    def digest(self, key: bytes) -> bytes | None:
        """Return the digest of the page of `key`, None without one. Cost: about 10 µs."""
        if self._connection is None:
            return None
        with self._naming():
            row = self._connection.execute("SELECT digest FROM pages WHERE key = ?", (key,))
            return (row.fetchone() or (None,))[0]

    def marks(self, before: float | None = None) -> Iterator[Row]:
        """Yield all rows in the order of their keys, or those of pages that were done `before`. No
        writer waits for the one who reads them."""
        last, query = b"", "SELECT key, time, digest FROM pages WHERE key > ?"
        query += f"{'' if before is None else ' AND time < ?'} ORDER BY key LIMIT {_AT_ONCE}"
        while self._connection is not None:
            with self._naming():
                values = (last,) if before is None else (last, before)
                found = self._connection.execute(query, values).fetchall()
            if not found:
                return
            yield from map(Row._make, found)
            last = found[-1][0]

    def write(self, rows: Iterable[Row], now: float, identity: str, reach: float) -> None:
        """Write rows durably, in the place of older ones; make the file if it is missing."""
        self._open_to_write(identity, reach)
        with self._naming():
            for some in _parts(rows):
                found = [{**row._asdict(), "now": now} for row in sorted(some, key=lambda r: r.key)]
                with self._transaction() as connection:
                    connection.executemany(_ADD, found)

    def remove(self, keys: Iterable[bytes]) -> None:
        """Remove the rows of `keys`."""
        if not self._is_writable:
            self._open("rw")
        if self._connection is not None:
            with self._naming():
                for some in _parts(keys):
                    with self._transaction() as connection:
                        connection.executemany(
                            "DELETE FROM pages WHERE key = ?", [(key,) for key in sorted(some)]
                        )

    def join(self, others: Sequence[Table], identity: str, reach: float) -> None:
        """Add the rows of other tables. Of two rows for a page the later one stays."""
        self._open_to_write(identity, reach)
        with self._naming():
            for some in _parts(chain.from_iterable(other.marks() for other in others)):
                with self._transaction() as connection:
                    connection.executemany(_MERGE, some)

    def empty(self, identity: str) -> None:
        """Remove all rows; a file that is damaged, whole."""
        if not self.path.exists():
            return
        try:
            self._open("rw")
            with self._naming(), self._transaction() as connection:
                connection.execute("DELETE FROM pages")
                connection.execute(
                    "UPDATE meta SET identity = ?, longest = 0, expiring = NULL", (identity,)
                )
        except FilterFileError as error:
            if not isinstance(error.__cause__, sqlite3.DatabaseError) or isinstance(
                error.__cause__, sqlite3.OperationalError
            ):
                raise
            self.close()
            # its journal would be taken for that of the next file
            self.path.with_name(f"{TABLE}-journal").unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
        self.close()

    def findings(self) -> str:
        """Return what is wrong with the file, empty if nothing is. Cost: all of it is read."""
        assert self._connection is not None
        with self._naming():
            for (text,) in self._connection.execute("PRAGMA integrity_check(1)"):
                if text != "ok":
                    return str(text)
            odd = self._connection.execute(
                "SELECT COUNT(*) FROM pages WHERE typeof(key) != 'blob' OR length(key) != 20"
                " OR typeof(time) NOT IN ('real', 'null') OR typeof(digest) NOT IN ('blob', 'null')"
            ).fetchone()[0]
        return f"{odd:,} rows are none of scrapy-bloom's" if odd else ""

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        connection, self._connection, self._is_writable = self._connection, None, False
        if connection is not None:
            connection.close()

    def _open(self, mode: str) -> None:
        self.close()
        self._forget()
        if not self.path.exists():
            return
        with self._naming():
            connection = connect(self.path, mode)
            connection.row_factory = None  # for tables of another file
            try:
                connection.execute(f"PRAGMA busy_timeout = {_PATIENCE}")
                if mode == "rw":
                    connection.execute(f"PRAGMA cache_size = {_CACHE}")
                connection.execute("BEGIN")  # another process may make the file at this moment
                has_meta = self._read_meta(connection)
                connection.execute("COMMIT")
                if not has_meta:
                    connection.close()
                    return
            except BaseException:
                connection.close()
                raise
            self._connection = connection
            self._is_writable = mode == "rw"
            if not self._is_writable:
                self._count()

    def _read_meta(self, connection: sqlite3.Connection) -> bool:
        """Return False for a file that is still empty."""
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        tables = statements(connection)
        if not tables and not application:
            return False
        if application != APPLICATION_ID or tables != {*_MAKE[1:]}:
            raise sqlite3.DatabaseError("it is another program's")
        row = connection.execute("SELECT version, identity, longest FROM meta").fetchone()
        version, self.identity, longest = row or (None, "", None)
        if version != VERSION:
            raise sqlite3.DatabaseError(
                f"it has version {version!r}, and this scrapy-bloom knows {VERSION}"
            )
        self.longest = inf if longest is None else float(longest)
        return True

    def _open_to_write(self, identity: str, reach: float) -> None:
        """Open the file, or make it, and record `reach`."""
        if not self._is_writable:
            self._open("rw")
        if self._connection is None:
            make_directory(self.path.parent, 0o700)
            with suppress(FileExistsError):  # another process may be faster
                os.close(privately(self.path, os.O_CREAT | os.O_EXCL))
            with self._naming(), closing(connect(self.path, "rw")) as connection:
                connection.execute("BEGIN IMMEDIATE")
                if not self._read_meta(connection):
                    for statement in _MAKE:
                        connection.execute(statement)
                    connection.execute(
                        "INSERT INTO meta VALUES (?, ?, 0, NULL)", (VERSION, identity)
                    )
                connection.execute("COMMIT")
            self._open("rw")
        self._record(reach, identity)

    def _record(self, reach: float, identity: str = "") -> None:
        """Record that a crawl has asked for `reach` seconds, and the fingerprinter of the rows if
        there is none yet."""
        if reach <= self.longest and (self.identity or not identity):
            return
        with self._naming(), self._transaction() as connection:
            connection.execute(
                "UPDATE meta SET identity = CASE identity WHEN '' THEN :identity ELSE identity END,"
                " longest = CASE WHEN longest IS NULL OR longest > :longest THEN longest"
                " ELSE :longest END",
                {"identity": identity, "longest": None if reach == inf else reach},
            )
            self._read_meta(connection)

    def _expire(self, now: float) -> None:
        """Remove what has been expired for an eighth of the longest period."""
        assert self._connection is not None
        if self.longest == inf:
            return
        with self._naming():
            (since,) = self._connection.execute("SELECT expiring FROM meta").fetchone()
            if since is not None and since <= now < since + self.longest / _TURNS:
                return
            if since is not None and since <= now:
                self._remove_older(since - self.longest, keep_digests=True)
            with self._transaction() as connection:
                connection.execute("UPDATE meta SET expiring = ?", (now,))

    def _remove_older(self, when: float, *, keep_digests: bool = False) -> int:
        assert self._connection is not None
        removed = 0
        with self._naming():
            (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
            parts = min(pages // _PAGES_AT_ONCE + 1, 1 << 16)
            ends = [(n << 16) // parts for n in range(parts)]
            for first, end in zip(ends, [*ends[1:], 1 << 16], strict=True):
                last = b"\xff" * 21 if end == 1 << 16 else end.to_bytes(2, "big")
                with self._transaction() as connection:
                    removed += connection.execute(
                        "DELETE FROM pages WHERE key >= ? AND key < ? AND time < ?"
                        " AND NOT (? AND digest IS NOT NULL)",
                        (first.to_bytes(2, "big") if first else b"", last, when, keep_digests),
                    ).rowcount
        return removed

    def _count(self) -> None:
        assert self._connection is not None
        with self._naming():
            (found,) = self._connection.execute(
                "SELECT COUNT(*), COUNT(time), COUNT(digest), MIN(time), MAX(time) FROM pages"
            )
        self.total, self.count, self.digests, self.oldest, self.newest = found
        self.nbytes = self.path.stat().st_size

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Give the connection, in a transaction, after a pause for other writers."""
        connection = self._connection
        assert connection is not None
        time.sleep(_PAUSE)
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
            raise

    @contextmanager
    def _naming(self) -> Iterator[None]:
        """Turn SQLite's errors into FilterFileError with the name of the file and a remedy."""
        try:
            yield
        except sqlite3.OperationalError as error:
            is_torn = self.path.with_name(f"{TABLE}-journal").exists()
            if is_torn and "readonly database" in str(error):
                raise UnfinishedWriteError(
                    f"{self.path} has the journal of a writer that was killed: the next crawl with"
                    " this BLOOM_DELTA_DIR rolls it back, and until then it cannot be read"
                ) from error
            raise FilterFileError(
                f"{self.path}: {error}; remove the cause, then start again"
            ) from error
        except (sqlite3.Error, TypeError, ValueError) as error:
            raise FilterFileError(
                f"{self.path} cannot be read ({error}): restore it from a backup, choose another"
                " BLOOM_DELTA_DIR, or start afresh with BLOOM_DELTA_RESET = True"
            ) from error


def _parts(rows: Iterable[T]) -> Iterator[list[T]]:
    left = iter(rows)
    while some := [*islice(left, _AT_ONCE)]:
        yield some
