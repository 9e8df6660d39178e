"""The delta store in a directory: `delta.sqlite`, which has the time at which each page was done.

Its rollback journal, not a write-ahead log, lets readers open it without a change to the directory.
Writers take turns: each transaction has a thousand rows at most. A writer that is killed leaves a
journal, which the next writer rolls back; readers refuse the file until then.

A row without a time is that of a page that is not done and has a digest, such as an index page.
Rows with a fact beside the time never expire: it serves when the page is asked for again.

A mark counts if its time is at most a period away from now, before or after: a wrong clock costs
repetitions, not the table. For the same reason an expired row is removed only when it has been
expired for an eighth of the longest period, in which the clock was not set back.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import chain, islice
from math import inf
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from ..amounts import counted
from ..errors import FilterFileError, IncompatibleFilterError
from ..files import make_directory, privately
from ..fingerprints import FingerprinterIdentity
from ..sqlite_file import connect, statements
from .settings import Lifetime

TABLE = "delta.sqlite"
VERSION = 1
APPLICATION_ID = 0x53426C64
_AT_ONCE = 1000
"""Most rows of a transaction."""
_PAUSE = 0.001
"""Seconds between two transactions, for other writers."""
_PATIENCE = 10_000
"""Milliseconds to wait for a process that writes."""
_LOOKED_AT = 20_000
"""Rows that a transaction looks through for expired ones."""
_TURNS = 8
"""Expired rows are looked for this many times in the longest period."""
_CACHE = -6000
"""Cache of a writer in KiB: more than the pages that a transaction changes."""

_MAKE = (
    f"PRAGMA application_id = {APPLICATION_ID}",
    # seconds since the epoch, 16 bytes
    "CREATE TABLE pages (key BLOB PRIMARY KEY, time REAL, digest BLOB, version BLOB,"
    " validators BLOB) WITHOUT ROWID",
    # one row; periods in seconds, NULL is for ever; `expiring` is since when what is expired waits
    "CREATE TABLE meta (version INTEGER NOT NULL, identity TEXT NOT NULL, longest REAL,"
    " expiring REAL)",
)
FACTS = ("digest", "version", "validators")
"""What outlives the mark of a page."""
_PUT = "INSERT INTO pages VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT DO UPDATE SET " + ", ".join(  # noqa: S608 - no input
    f"{name} = CASE WHEN {name} IS NOT NULL AND {{stays}} THEN {name}"
    f" ELSE COALESCE(excluded.{name}, {name}) END"
    for name in (*FACTS, "time")
)
_ADD = _PUT.format(stays="time > excluded.time AND time <= ?6")
_MERGE = _PUT.format(stays="COALESCE(excluded.time <= COALESCE(time, -1), TRUE)")
_END = "SELECT MAX(key) FROM (SELECT key FROM pages WHERE key > ? ORDER BY key LIMIT ?)"


class Row(NamedTuple):
    """A page: `time` is None if it is not done; then its FACTS. `digest` is that of its items,
    `version` a hash of `bloom_delta_version`; `validators` are those of the response."""

    key: bytes
    time: float | None
    digest: bytes | None = None
    version: bytes | None = None
    validators: bytes | None = None


def is_same(one: str, other: str) -> bool:
    """Return True if two fingerprinters, as text, have the same fingerprints."""
    with suppress(ValueError):
        found = map(FingerprinterIdentity.from_text, {one, other})
        return len({(each.identity, *each.plain) for each in found}) == 1
    return one == other


class UnfinishedWriteError(FilterFileError):
    """A writer was killed, and its journal is there."""


class ForeignFileError(FilterFileError):
    """The file is another program's, or of another version, and none that may be removed."""


class FileDeltaStore:
    """The delta store in `directory`, which need not exist. Any method may raise OSError or
    FilterFileError.

    As of the opening, `count` is the number of pages that are done, `digests` of those with a
    digest, `total` of all rows; `oldest` and `newest` are the first and the last of the times,
    `nbytes` is the size of the file, `identity` the text about the fingerprinter, `longest` the
    longest period that a crawl has asked for.
    """

    def __init__(
        self, directory: Path, lifetime: Lifetime, clock: Callable[[], float] = time.time
    ) -> None:
        self.directory = directory
        self.path = directory / TABLE
        self.name = str(directory)
        self.lifetime = lifetime
        self.clock = clock
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

    @property
    def is_empty(self) -> bool:
        """True if the store had no marks when it was opened."""
        return not self.count

    @property
    def holds(self) -> str:
        """The number of pages and digests when the store was opened."""
        pages = counted(self.count, "page")
        return f"{pages}, {counted(self.digests, 'digest')}" if self.digests else pages

    def look(self) -> None:
        """Open the file read-only, if there is one. Raises UnfinishedWriteError."""
        self._open("ro")

    def open(self) -> None:
        """Open the file, if there is one, and remove what has expired. Later additions of other
        processes count at once."""
        self._open("rw")
        if self.is_open:
            self._record(self.lifetime.reach)
            self._expire(self.clock())
            self._count()

    def roll_back(self) -> None:
        """Roll back what a writer that was killed has not finished."""
        self._open("rw")
        self.close()

    def require_writable(self) -> None:
        """Raise FilterFileError if this process may not write to the store, or make it."""
        directory = next(p for p in (self.directory, *self.directory.parents) if p.exists())
        for path in (self.path, directory):
            if path.exists() and not os.access(path, os.W_OK):
                raise FilterFileError(
                    f"{path} cannot be written to, and pages are marked there: change its rights,"
                    " or choose another BLOOM_DELTA_DIR, or set BLOOM_DELTA_READ_ONLY to True"
                )

    def known_until(self, key: bytes, period: float | None = None) -> float:
        """Return the time until which `key` counts as marked in the last `period` seconds, at most
        those of the store; 0 if it does not. Cost: 10 µs."""
        reach = self.lifetime.reach
        period = reach if period is None else min(period, reach)
        when: float | None = self.fact(key, "time")
        return 0.0 if when is None or abs(self.clock() - when) > period else float(when) + period

    def fact(self, key: bytes, name: str) -> Any:
        """Return the time or one of the FACTS about the page of `key`, None without it. Cost: 10
        µs."""
        found = self._query(f"SELECT {name} FROM pages WHERE key = ?", (key,))  # noqa: S608 - no input
        return found[0][0] if found else None

    def marks(self, before: float | None = None) -> Iterator[Row]:
        """Yield all rows in the order of their keys, or those of pages that were done `before`. No
        writer waits for the one who reads them."""
        last, query = b"", "SELECT * FROM pages WHERE key > ?1"
        query += f" AND (?2 IS NULL OR time < ?2) ORDER BY key LIMIT {_AT_ONCE}"
        while found := self._query(query, (last, before)):
            yield from map(Row._make, found)
            last = found[-1][0]

    def add(self, rows: Iterable[Row | tuple[bytes, float]]) -> None:
        """Add pages, durably: those with a time are done. Adding them again changes nothing, and an
        older row takes nothing from a newer one. The file is made if it is missing."""
        now = self.clock()
        found = [
            (key, when and min(when, now), *facts, now)
            for key, when, *facts in (Row(*each) for each in rows)
        ]
        if found:
            self._open_to_write(self.lifetime.identity, self.lifetime.reach)
            self._change(_ADD, found)

    def counts(self, before: float | None) -> tuple[int, dict[str, int]]:
        """Return the number of pages: all, or those of `before`; and no slices."""
        if before is None:
            return self.count, {}
        query = "SELECT COUNT(*) FROM pages WHERE time < ?"
        ((count,),) = self._query(query, (before,)) or [(0,)]
        return count, {}

    def forget(self, keys: Sequence[bytes]) -> int:
        """Let the pages of `keys` not be done any more, and have no facts; return how many were or
        had."""
        known = sum(
            self.known_until(key) > 0 or any(self.fact(key, each) for each in FACTS) for key in keys
        )
        if not self._is_writable:
            self._open("rw")
        self._change("DELETE FROM pages WHERE key = ?", [(key,) for key in keys])
        return known

    def drop_older(self, seconds: float) -> tuple[int, list[NoReturn]]:
        """Remove the marks that are older than `seconds`; return how many, and no slices."""
        self._open("rw")
        when = self.clock() - seconds
        return 0 if self._connection is None else self._remove_older(when), []

    def merge(self, others: Sequence[Path]) -> None:
        """Add the marks of the stores in `others`, once each of them was found readable: of two
        rows for a page the later one stays. What a merge that was killed has not done, another one
        does."""
        self.roll_back()
        with ExitStack() as stack:
            stores = [self, *(FileDeltaStore(each, Lifetime()) for each in dict.fromkeys(others))]
            for store in stores:
                stack.enter_context(closing(store)).look()
            found = [store for store in stores if store.total]
            for store in found[1:]:
                if not is_same(store.identity, found[0].identity):
                    raise IncompatibleFilterError(
                        f"{store.directory} has marks of another fingerprinter than"
                        f" {self.directory}: give delta stores of one REQUEST_FINGERPRINTER_CLASS"
                    )
            if filled := [store for store in stores[1:] if store.is_open]:
                identity = found[0].identity if found else ""
                if not self.total:
                    self._empty(identity)
                self._open_to_write(identity, max(each.longest for each in filled))
                self._change(_MERGE, chain.from_iterable(each.marks() for each in filled))

    def clear(self) -> None:
        """Remove all rows; a file that is damaged, whole. Raises ForeignFileError."""
        self._empty(self.lifetime.identity)

    def findings(self) -> str:
        """Return what is wrong with the file, empty if nothing is. Cost: all of it is read."""
        for (text,) in self._query("PRAGMA integrity_check(1)"):
            if text != "ok":
                return str(text)
        query = (
            "SELECT COUNT(*) FROM pages WHERE typeof(key) != 'blob' OR length(key) != 20"
            " OR typeof(time) NOT IN ('real', 'null') OR typeof(digest) NOT IN ('blob', 'null')"
            " OR typeof(version) NOT IN ('blob', 'null')"
            " OR typeof(validators) NOT IN ('blob', 'null')"
        )
        ((odd,),) = self._query(query) or [(0,)]
        return f"{odd:,} rows are none of scrapy-bloom's" if odd else ""

    def close(self) -> None:
        """Close the file. A second call does nothing."""
        connection, self._connection, self._is_writable = self._connection, None, False
        if connection is not None:
            connection.close()

    def _empty(self, identity: str) -> None:
        try:
            self._open("rw")
            if self.is_open:
                with self._transaction() as connection:
                    connection.execute("DELETE FROM pages")
                    connection.execute(
                        "UPDATE meta SET identity = ?, longest = 0, expiring = NULL", (identity,)
                    )
        except FilterFileError as error:
            cause, kind = error.__cause__, sqlite3.DatabaseError
            if not isinstance(cause, kind) or isinstance(cause, sqlite3.OperationalError):
                raise
            self.close()
            # its journal would be taken for that of the next file
            self.path.with_name(f"{TABLE}-journal").unlink(missing_ok=True)
            self.path.unlink(missing_ok=True)
        self.close()

    def _query(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        """Return the selected rows, none without a file."""
        if self._connection is None:
            return []
        with self._naming():
            return self._connection.execute(query, values).fetchall()

    def _change(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Run `statement` for each of `rows`, if there is a file, durably."""
        left = iter(rows)
        while self.is_open and (some := [*islice(left, _AT_ONCE)]):
            with self._transaction() as connection:
                connection.executemany(statement, sorted(some, key=itemgetter(0)))

    def _open(self, mode: str, identity: str | None = None) -> None:
        """Open the file, if there is one; with the `identity` of a fingerprinter make it."""
        self.close()
        self._forget()
        if not self.path.exists():
            if identity is None:
                return
            make_directory(self.path.parent, 0o700)
            with suppress(FileExistsError):  # another process may be faster
                os.close(privately(self.path, os.O_CREAT | os.O_EXCL))
        with self._naming(), ExitStack() as stack:
            connection = stack.enter_context(closing(connect(self.path, mode)))
            connection.execute(f"PRAGMA busy_timeout = {_PATIENCE}")
            if mode == "rw":
                connection.execute(f"PRAGMA cache_size = {_CACHE}")
            with connection:
                # another process may make the file at this moment
                connection.execute("BEGIN" if identity is None else "BEGIN IMMEDIATE")
                if not self._read_meta(connection):
                    if identity is None:
                        return
                    for statement in _MAKE:
                        connection.execute(statement)
                    values = VERSION, identity
                    connection.execute("INSERT INTO meta VALUES (?, ?, 0, NULL)", values)
            stack.pop_all()
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
        if application != APPLICATION_ID:
            raise self._foreign()
        version, *rest = connection.execute("SELECT * FROM meta").fetchone() or (VERSION,)
        if version != VERSION:
            raise self._foreign(f"has version {version!r}, and this scrapy-bloom knows {VERSION}")
        if tables != {*_MAKE[1:]} or not rest:
            raise sqlite3.DatabaseError("its tables are not whole")
        self.identity, longest, _ = rest
        self.longest = inf if longest is None else float(longest)
        return True

    def _open_to_write(self, identity: str, reach: float) -> None:
        """Open the file, or make it, and record `reach`."""
        if not self._is_writable:
            self._open("rw", identity)
        self._record(reach, identity)

    def _record(self, reach: float, identity: str = "") -> None:
        """Record that a crawl has asked for `reach` seconds, and the fingerprinter of the rows if
        there is none yet."""
        if reach <= self.longest and (self.identity or not identity):
            return
        with self._transaction() as connection:
            connection.execute(
                "UPDATE meta SET identity = COALESCE(NULLIF(identity, ''), ?),"
                " longest = MAX(longest, ?)",  # NULL is more than any number
                (identity, None if reach == inf else reach),
            )
            self._read_meta(connection)

    def _expire(self, now: float) -> None:
        """Remove what has been expired for an eighth of the longest period."""
        if self.longest == inf:
            return
        with self._naming():
            ((since,),) = self._query("SELECT expiring FROM meta")
            if since is not None and since <= now < since + self.longest / _TURNS:
                return
            if since is not None and since <= now:
                self._remove_older(since - self.longest, keep_facts=True)
            with self._transaction() as connection:
                connection.execute("UPDATE meta SET expiring = ?", (now,))

    def _remove_older(self, when: float, *, keep_facts: bool = False) -> int:
        removed, last = 0, b""
        while last is not None:
            with self._transaction() as connection:
                (end,) = connection.execute(_END, (last, _LOOKED_AT)).fetchone()
                removed += connection.execute(
                    "DELETE FROM pages WHERE key > ? AND key <= ? AND time < ?"
                    " AND NOT (? AND COALESCE(digest, version, validators, x'') > x'')",
                    (last, end, when, keep_facts),
                ).rowcount
            last = end
        return removed

    def _count(self) -> None:
        counts = "COUNT(*), COUNT(time), COUNT(digest), MIN(time), MAX(time), MIN(digest)"
        (found,) = self._query(f"SELECT {counts} FROM pages")  # noqa: S608 - no input
        self.total, self.count, self.digests, self.oldest, self.newest, digest = found
        if isinstance(self.newest, (str, bytes)) or isinstance(digest, (str, int, float)):
            raise sqlite3.DatabaseError("a time or a digest has another type")
        self.nbytes = self.path.stat().st_size

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Give the connection, in a transaction, after a pause for other writers."""
        connection = self._connection
        assert connection is not None
        time.sleep(_PAUSE)
        with self._naming(), connection:
            connection.execute("BEGIN IMMEDIATE")
            yield connection

    def _foreign(self, what: str = "is another program's") -> ForeignFileError:
        remedy = "move it away, or choose another BLOOM_DELTA_DIR"
        return ForeignFileError(f"{self.path} cannot be read (it {what}): {remedy}")

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
            with self.path.open("rb") as file:
                application = file.read(72)[68:]
            if application not in (bytes(4), APPLICATION_ID.to_bytes(4, "big")):
                raise self._foreign() from None
            raise FilterFileError(
                f"{self.path} cannot be read ({error}): restore it from a backup, choose another"
                " BLOOM_DELTA_DIR, or start afresh with BLOOM_DELTA_RESET = True"
            ) from error
