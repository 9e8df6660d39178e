"""The requests of a job in one SQLite file.

Pushes and deletions are written in groups: `commit` makes all of a group durable or none. A popped
request keeps its row until it is deleted, so after a crash it is pending again.
"""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from urllib.parse import quote

from ..bloom.growing import stored_owner
from ..errors import BloomError, FilterFileError, JobDirectoryError, RequestFileError
from ..files import open_regular, replacing
from ..jobdir import reading_mode
from . import schema

if TYPE_CHECKING:
    from ..jobdir import JobDirectory

BUSY_SECONDS = 5.0
"""Seconds that a write waits for another program that has locked the file."""
POPPED_IN_MEMORY = 100
"""Most popped rows that a pop must skip; when there are more, they are marked in the file."""
PRIORITIES = range(-(2**63), 2**63)
MAX_BYTES = 500_000_000
"""Most bytes of a request; SQLite's own limit is twice that."""
_DAMAGED = (sqlite3.Error, TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""What reading a damaged file raises."""
_NONE = type(None)
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("slot", "reason", "url", "method", "figures", "phase", "spider"), (str,)),
    **dict.fromkeys(("priority", "start", "attempts", "times", "commits", "pushed"), (int,)),
    **dict.fromkeys(("number", "pages", "items", "duplicates", "retries"), (int,)),
    **dict.fromkeys(("due", "MIN(due)", "until", "pause"), (float, _NONE)),
    **dict.fromkeys(("exception", "referer"), (str, _NONE)),
    "status": (int, _NONE),
    "time": (float,),
}
"""Of the columns with these names; SQLite has values of any type in each."""
MAGIC = b"SQLite format 3\0"
MOST_ROWS = 1 << 62

OLDEST = (
    "SELECT id FROM requests WHERE slot = ? AND priority = ? AND start = ? AND popped = 0"
    " ORDER BY id"
)
NEWEST = f"{OLDEST} DESC"
_WITH_SLOT = (
    "SELECT id, slot, request FROM requests WHERE slot != '' AND id > ? ORDER BY id LIMIT 1000"
)
_MERGE_SLOT = (
    "UPDATE requests SET popped = ?1 IS NULL, request = COALESCE(?1, request),"
    " slot = CASE WHEN ?1 IS NULL THEN slot ELSE '' END WHERE id = ?2"
)
Group = tuple[str, int, int]
"""Slot, priority (as Scrapy's queues count it: lower first), 1 for start requests."""


Method = TypeVar("Method", bound=Callable[..., Any])


def _naming(method: Method) -> Method:
    """Add the name of the file to the SQLite errors of a method, and the remedy if the file is
    damaged. What is added to a number there may be too large for SQLite."""

    @wraps(method)
    def named(self: RequestFile, *arguments: Any, **options: Any) -> Any:
        try:
            return method(self, *arguments, **options)
        except (sqlite3.Error, OverflowError) as error:
            if not self.name or str(error).startswith(self.name):
                raise
            is_damaged = not isinstance(error, sqlite3.OperationalError)
            remedy = "; restore it from a backup, or use a new JOBDIR" if is_damaged else ""
            kind = type(error) if isinstance(error, sqlite3.Error) else sqlite3.DataError
            raise kind(f"{self.name}: {error}{remedy}") from error

    return named  # type: ignore[return-value]


class JobIdentity(NamedTuple):
    """Of a job: `id` is random, `spider` empty before the first start."""

    id: bytes
    spider: str
    commits: int


class RequestFile:
    """`requests.sqlite` in a job directory: one row for each pending or dispatched request.

    As of the opening, `clean` is True if the file had been closed, `unreleased` are fingerprints of
    stored requests that may be missing in the filter, `counts` is the number of requests in each
    group. `operations` counts the rows pushed and deleted since the last commit, `last_pushed` is
    the last row. `later` counts the delayed requests, `due` is the time of the next one (seconds
    since 1970), None without any. `taken_over` is the stamp of the last queues of Scrapy that were
    moved here. `id` is the job's, `commits` its number of commits. Any method may raise
    sqlite3.Error, which calls the file `name`.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.name = ""
        self._pushed: list[tuple[int, str, int, int, bytes]] = []
        self._deleted: list[int] = []
        self._popped: set[int] = set()
        self.operations = 0
        self.last_pushed = 0
        self.pushing_back = False
        self.id = b""
        self.commits = 0
        self.clean, unreleased, self.taken_over = connection.execute("SELECT * FROM job").fetchone()
        self.unreleased = [bytes.fromhex(text) for text in json.loads(unreleased)]
        self.counts: dict[Group, int] = {}
        self._first = self._last = self.later = 0
        self.due: float | None = None
        self.recount()

    @classmethod
    def open(cls, path: Path) -> RequestFile:
        """Open or make the file at `path`. Popped and unreadable requests are pending again.

        Cost: reads the index. Raises RequestFileError if the file is locked or not sound; then it
        is unchanged.
        """
        with _refusing(path):
            if not check_header(path):
                _create(path)
            # all checks come before the first write
            _require_writable(path)
            with _looking(path) as connection:
                file = cls(connection)
            file._connection = connect(path, "rw")
            try:
                file._prepare()
            except BaseException:
                file._connection.close()
                raise
        file.name = str(path)
        return file

    @property
    def changed(self) -> bool:
        """True if a commit would write rows."""
        return self.operations > 0 or self._connection.in_transaction

    @property
    def popped_in_memory(self) -> list[int]:
        """The popped rows that the file does not mark, POPPED_IN_MEMORY at most."""
        return [*self._popped]

    @property
    def is_empty(self) -> bool:
        """True if no request is pending, delayed or dispatched."""
        self.write()
        return not self.later and not self.query("SELECT 1 FROM requests LIMIT 1")

    @_naming
    def query(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the selected rows."""
        return self._connection.execute(statement, values).fetchall()

    @_naming
    def execute(
        self, statement: str, values: Sequence[object] | Mapping[str, object] = ()
    ) -> sqlite3.Cursor:
        """Run a statement that changes another component's table, with the next commit."""
        self._begin()
        return self._connection.execute(statement, values)

    def iterate(self, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the selected rows, not all in memory at once."""
        return iter(partial(self._next, self._connection.execute(statement, values)), None)

    def push(self, group: Group, request: bytes, *, newest_first: bool = False) -> None:
        """Add a row, the newest, with the next commit. While `pushing_back`, a queue with the
        newest first gets it as the oldest."""
        if self.pushing_back and newest_first:
            self._first = row = self._first - 1
        else:
            self._last = row = self._last + 1
        self.operations += 1
        self.last_pushed = row
        self._pushed.append((row, *group, request))

    def delay(self, due: float, group: Group, request: bytes) -> None:
        """Add a delayed request with the next commit. It has a number as a row has, and another one
        when it is a row."""
        self._last = self.last_pushed = self._last + 1
        self.operations += 1
        self.execute(
            "INSERT INTO later VALUES (?, ?, ?, ?, ?, ?)", (self._last, due, *group, request)
        )
        self.later += 1
        self.due = due if self.due is None else min(due, self.due)

    def take_due(self, now: float, most: int) -> list[tuple[int, Group, bytes]]:
        """Delete the first delayed requests that are due `now`, with the next commit, which has to
        have their rows; return number, group and request of each."""
        rows = self.query(
            "SELECT id, slot, priority, start, request FROM later WHERE due <= ? ORDER BY due, id"
            " LIMIT ?",
            (now, most),
        )
        self._execute_many("DELETE FROM later WHERE id = ?", [row[:1] for row in rows])
        self.operations += len(rows)
        self.later -= len(rows)
        ((self.due,),) = self.query("SELECT MIN(due) FROM later")
        return [(row[0], row[1:4], row[4]) for row in rows]

    def move_due(self, before: float, after: float) -> None:
        """Let delayed requests that are due at `before` be due at `after`, with the next commit."""
        self.execute("UPDATE later SET due = ? WHERE due = ?", (after, before))
        ((self.due,),) = self.query("SELECT MIN(due) FROM later")

    @_naming
    def pop(self, group: Group, *, newest: bool, keep: bool = False) -> tuple[int, bytes]:
        """Return row number and request of the newest or oldest row in `group` that was not
        popped; the row stays, and with `keep` it is not popped."""
        self.write()
        ids = self._connection.execute(NEWEST if newest else OLDEST, group)
        ids.row_factory = None  # for the speed
        row = next((row for (row,) in ids if row not in self._popped), None)
        ids.close()
        # in a damaged file an index may name a row that is not in its table
        found = self._connection.execute("SELECT request FROM requests WHERE id = ?", (row,))
        if row is None or not (requests := found.fetchall()):
            raise sqlite3.DatabaseError(f"a request of {group} is missing")
        ((request,),) = requests
        if not keep:
            self._popped.add(row)
            if len(self._popped) > POPPED_IN_MEMORY:
                marked = [(each,) for each in self._popped]
                self._execute_many("UPDATE requests SET popped = 1 WHERE id = ?", marked)
                self._popped.clear()
        return row, request

    def delete(self, row: int) -> None:
        """Delete a popped row, with the next commit."""
        self._deleted.append(row)
        self.operations += 1

    @_naming
    def write(self) -> None:
        """Insert the pushed rows, without a commit."""
        if self._pushed:
            self._begin()
            self._connection.executemany(
                "INSERT INTO requests VALUES (?, ?, ?, ?, 0, '', ?)", self._pushed
            )
            self._pushed.clear()

    @_naming
    def commit(self, unreleased: Iterable[bytes] = (), taken_over: str | None = None) -> None:
        """Make all changes since the last commit durable, with the fingerprints that are released
        next, and the stamp of Scrapy's queues. Cost: an fsync."""
        self.taken_over = self.taken_over if taken_over is None else taken_over
        self.write()
        deleted = [(row,) for row in self._deleted]
        self._execute_many("DELETE FROM requests WHERE id = ?", deleted)
        self._connection.execute(
            "UPDATE job SET unreleased = ?, taken_over = ?",
            (json.dumps([f.hex() for f in unreleased]), self.taken_over),
        )
        self._connection.execute("UPDATE identity SET commits = ?", (self.commits + 1,))
        self._connection.execute("COMMIT")
        self.commits += 1
        self._popped.difference_update(self._deleted)
        self._deleted.clear()
        self.operations = 0

    def name_spider(self, name: str) -> None:
        """Record the spider of the requests, with the next commit."""
        if self.query("SELECT 1 FROM identity WHERE spider != ?", (name,)):
            self.execute("UPDATE identity SET spider = ?", (name,))

    def rollback(self) -> None:
        """Drop all changes since the last commit; afterwards only `close` may be called."""
        self._pushed.clear()
        self._deleted.clear()
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def merge_slots(self, moved: Callable[[int, str, bytes], bytes | None]) -> None:
        """Give all rows the slot '', with the next commit. `moved` makes the request for it of row
        number, slot and request; with None a row keeps both, and counts as popped. Cost: rewrites
        all rows with another slot."""
        if not any(slot for slot, _, _ in self.counts):
            return
        last = self._first - 1
        while rows := self.query(_WITH_SLOT, (last,)):
            last = rows[-1][0]
            self._execute_many(_MERGE_SLOT, [(moved(*each), each[0]) for each in rows])
        self.counts = self._count()

    def merge_starts(self) -> None:
        """Make all start requests other requests, with the next commit. Cost: rewrites them."""
        if any(start for _, _, start in self.counts):
            self.execute("UPDATE requests SET start = 0 WHERE start != 0")
            self.counts = self._count()

    def recount(self) -> None:
        """Read the counts of the groups again, before the first push."""
        self.counts = self._count()
        # two subqueries: each is found without reading the rows between
        ((self._first, self._last),) = self.query(
            "SELECT COALESCE((SELECT MIN(id) FROM requests), 0),"
            " COALESCE((SELECT MAX(id) FROM requests), 0)"
        )
        self._last = max(self._last, self.recount_later())
        if self._last > MOST_ROWS:
            raise sqlite3.DatabaseError(f"a request has the number {self._last}")

    def recount_later(self) -> int:
        """Read again how many requests are delayed, and when the next one is due; return the last
        number of one."""
        ((self.later, self.due, last),) = self.query(
            "SELECT COUNT(*), MIN(due), MAX(id) FROM later"
        )
        return last or 0

    @_naming
    def close(self, *, clean: bool) -> None:
        """Close the file, marked as `clean` or not; never as clean with uncommitted changes."""
        try:
            if clean and not self.changed:
                self._connection.execute("UPDATE job SET clean = 1")
        finally:
            self._connection.close()

    def _prepare(self) -> None:
        """Make all changes of opening the file, in one transaction."""
        _set_up(self._connection)
        with self._connection:
            self.execute("UPDATE job SET clean = 0")
            popped = self.execute("UPDATE requests SET popped = 0 WHERE popped = 1")
            restored = self.execute(
                "INSERT INTO requests SELECT unreadable.id, slot, priority, start, 0, format,"
                " request FROM unreadable JOIN failed ON failed.id = record"
            )
            self.execute("DELETE FROM failed WHERE id IN (SELECT record FROM unreadable)")
            if popped.rowcount or restored.rowcount:
                self.recount()
            ((self.id, self.commits),) = self.query("SELECT id, commits FROM identity")

    @_naming
    def _execute_many(self, statement: str, values: Iterable[Sequence[object]]) -> None:
        self._begin()
        self._connection.executemany(statement, values)

    @_naming
    def _next(self, rows: sqlite3.Cursor) -> tuple[Any, ...] | None:
        return next(rows, None)

    def _count(self) -> dict[Group, int]:
        rows = self.query(
            "SELECT slot, priority, start, COUNT(*) FROM requests WHERE popped = 0"
            " GROUP BY slot, priority, start"
        )
        return {(slot, priority, start): count for slot, priority, start, count in rows}

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN IMMEDIATE")


def check_header(path: Path) -> bool:
    """Return False if there is no file at `path`. Raise RequestFileError if it is no request file.
    Cost: reads 100 bytes."""
    try:
        with open_regular(path, read_only=True) as file:
            header = file.read(100)
    except FileNotFoundError:
        return False
    except (OSError, FilterFileError) as error:
        raise _refused(path, error) from error
    if header[:16] != MAGIC or len(header) < 100:
        raise _refused(path, f"it begins with {header[:16]!r}, not with {MAGIC!r}")
    application = int.from_bytes(header[68:72], "big")
    version = int.from_bytes(header[60:64], "big")
    if application != schema.APPLICATION_ID:
        raise _refused(path, f"it is another program's (its id is {application:#x})")
    _require_version(path, version)
    return True


def read_identity(path: Path) -> JobIdentity | None:
    """Return the identity in the file at `path` without changing it, None if there is no file.
    Raises RequestFileError as `open` does."""
    if not check_header(path):
        return None
    with _refusing(path):
        _require_writable(path)
        with _looking(path) as connection:
            return JobIdentity(*connection.execute("SELECT * FROM identity").fetchone())


def require_whole_job(job: JobDirectory) -> JobIdentity | None:
    """Return the identity of `job`, None if it has none yet. Raises RequestFileError.

    Raises JobDirectoryError if its filter belongs to another request file, or to later commits than
    those of the file: requests that only the filter has would never be fetched.
    """
    owner, found = stored_owner(job.filter), read_identity(job.requests)
    if owner is None or (
        found is not None and found.id == owner.job and found.commits >= owner.commit
    ):
        return found
    what = f"is not the one that {job.filter} belongs to, or lacks what was committed last"
    if found is None:
        what = f"is not there, and {job.filter} belongs to it"
    elif found.id == owner.job:
        what = f"ends with commit {found.commits}, and {job.filter} knows of commit {owner.commit}"
    raise JobDirectoryError(
        f"{job.requests} {what}: pages that {job.filter} has seen would be lost. Put back"
        f" {job.requests.name}-wal, which belongs to it, or both from one copy of the stopped job,"
        " or use a new JOBDIR"
    )


@contextmanager
def as_it_is(path: Path) -> Iterator[RequestFile | None]:
    """Give the file at `path`, read-only, or None if there is no file. Raises RequestFileError as
    `open` does."""
    with ExitStack() as stack:
        file = None
        with _refusing(path):
            if check_header(path):
                file = RequestFile(stack.enter_context(_looking(path)))
                file.name = str(path)
        yield file


@contextmanager
def reading(path: Path, *, or_empty: bool = False) -> Iterator[sqlite3.Connection]:
    """Give a connection to the file at `path` that changes nothing, also while the job runs; with
    `or_empty` one to empty tables if there is no file. For a killed job without `-shm` SQLite makes
    one. Raises RequestFileError."""
    is_there = check_header(path) or not or_empty
    try:
        with _looking(path) if is_there else closing(schema.in_memory()) as connection:
            yield connection
    except BloomError:
        raise  # of the caller, of something else
    except _DAMAGED as error:
        raise RequestFileError(f"{path} cannot be read: {error}") from error


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        raise RequestFileError(
            f"{path} cannot be opened: {error}; remove the cause, then start again"
        ) from error
    except _DAMAGED as error:
        raise _refused(path, error) from error


def _require_writable(path: Path) -> None:
    """Raise PermissionError before SQLite makes a log that it cannot write."""
    for each in (path, *path.parent.glob(f"{path.name}-*")):
        if not os.access(each, os.W_OK):
            raise PermissionError(errno.EACCES, "it cannot be written", str(each))


@contextmanager
def _looking(path: Path) -> Iterator[sqlite3.Connection]:
    """Give a read-only connection to a file whose tables are as they should be."""
    with closing(connect(path, reading_mode(path))) as connection:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        _require_version(path, version)
        schema.check(connection)
        yield connection


def _create(path: Path) -> None:
    """Make an empty file; the process has the lock of its directory."""
    for leftover in path.parent.glob(".*.bloom.tmp*"):
        leftover.unlink()
    with replacing(path) as file, closing(connect(Path(file.name), "rw")) as connection:
        with connection:  # in one transaction: each costs a write to the disk
            connection.execute("BEGIN")
            schema.create(connection)
        _set_up(connection)


def connect(path: Path, mode: str) -> sqlite3.Connection:
    """Return a connection in one of SQLite's modes, which commits each statement outside a
    transaction at once, and overwrites with zeros what it deletes."""
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"
    connection = sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None)
    connection.row_factory = _typed
    connection.execute("PRAGMA secure_delete = ON")  # by default it is a build's choice
    return connection


def _typed(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return `row`. Raises DatabaseError for a value of another type than its column has."""
    for (name, *_), value in zip(cursor.description, row, strict=True):
        if name in _TYPES and type(value) not in _TYPES[name]:
            raise sqlite3.DatabaseError(f"{name} has a value of type {type(value).__name__}")
    return row


def _set_up(connection: sqlite3.Connection) -> None:
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise sqlite3.OperationalError(f"its file system allows no WAL (only {mode!r})")
    connection.execute("PRAGMA synchronous = FULL")


def _require_version(path: Path, version: int) -> None:
    """Raise RequestFileError unless files of that version can be read."""
    if version != schema.VERSION:
        raise RequestFileError(
            f"{path} cannot be used: it has version {version}, and this scrapy-bloom reads version"
            f" {schema.VERSION}; it was left as it is. Use the scrapy-bloom that has written it, or"
            " a new JOBDIR"
        )


def _refused(path: Path, reason: object) -> RequestFileError:
    return RequestFileError(
        f"{path} cannot be used: {reason}; it was left as it is. Restore it from a backup,"
        " or use a new JOBDIR"
    )
