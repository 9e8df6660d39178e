"""The requests of a job in one SQLite file: `commit` makes all changes durable or none. A popped
request keeps its row until it is deleted, so after a crash it is pending again."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from time import sleep
from typing import Any

from ..bloom import layer_path
from ..bloom.owner import stored_owner
from ..errors import FilterFileError, JobDirectoryError, RequestFileError
from ..files import open_regular, replacing
from ..jobdir import JobDirectory
from ..sqlite_file import connect
from . import schema

MAX_BYTES = 500_000_000
"""Most bytes of a request; SQLite's own limit is twice that."""
MOST_ROWS = 1 << 62
UNFINISHED = (
    f"SELECT 1 WHERE {schema.WAITS}"  # noqa: S608 - no input
    " OR EXISTS (SELECT 1 FROM request WHERE state > 0 AND state = 5)"
)
DAMAGED = (sqlite3.Error, TypeError, ValueError, AttributeError, LookupError, ArithmeticError)
"""What reading a damaged file raises."""
_LAYERS = (
    "SELECT MAX(time), CASE WHEN json_valid(figures) THEN json_extract(figures, '$.filter_layers')"
    " END FROM progress WHERE NOT ? OR EXISTS (SELECT 1 FROM rounds WHERE phase = 'running')"
)
_NONE = type(None)
_TYPES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("name", "figures", "phase", "reason", "spider", "unreleased"), (str,)),
    **dict.fromkeys(("slot", "rank", "times", "commits", "counted", "last"), (int,)),
    **dict.fromkeys(("number", "pages", "items", "duplicates", "retries"), (int,)),
    **dict.fromkeys(("due", "MIN(due)", "until", "pause"), (float, _NONE)),
    "round": (int, _NONE),
    "time": (float,),
}
"""Of the columns with these names; SQLite has values of any type in each."""
MAGIC = b"SQLite format 3\0"


class RequestFile:
    """`requests.sqlite` in a job directory, to which each component of the job writes its tables.

    As of the opening, `clean` is True if the file had been closed, `unreleased` are fingerprints of
    stored requests that may be missing in the filter, `last` is the last id or place of a request,
    `taken_over` the stamp of the last queues of Scrapy that were moved here. `spider` is empty
    before the first start. Any method may raise sqlite3.Error, or OverflowError for a damaged file.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path | None = None) -> None:
        self._connection, self.name = connection, str(path)
        self.before_commit: Callable[[], int] = lambda: self.last
        """Called in each commit; returns the last id or place of a request."""
        what = "SELECT id, spider, commits, clean, unreleased, taken_over, last FROM job"
        found = connection.execute(what).fetchone()
        self.id, self.spider, self.commits, self.clean, unreleased, self.taken_over, last = found
        self.unreleased = [bytes.fromhex(text) for text in json.loads(unreleased)]
        ((most,),) = connection.execute("SELECT MAX(id) FROM request")
        self.last: int = max(last, most or 0)
        if self.last > MOST_ROWS:
            raise sqlite3.DatabaseError(f"a request has the number {self.last}")

    @classmethod
    def open(cls, path: Path, *, starts: bool = True) -> RequestFile:
        """Open the file at `path`. What `starts` makes it if it is missing, and has claimed and
        unreadable requests pending again; a command on a stopped job does not. Raises
        RequestFileError if the file is locked or not sound; then it is unchanged."""
        with _refusing(path):
            if not check_header(path) and starts:
                _create(path)
            # all checks come before the first write
            _require_writable(path)
            with looking(path) as connection:
                file = cls(connection, path)
            file._connection = connect(path, "rw")
            file._connection.row_factory = _typed
            try:
                _set_up(file._connection)
                # the first statement that changes rows begins a transaction
                file._connection.isolation_level = "IMMEDIATE"
                with file._connection:
                    for statement in schema.AT_START if starts else ():
                        file.execute(statement)
            except BaseException:
                file._connection.close()
                raise
        return file

    @property
    def changed(self) -> bool:
        """True if a commit would write rows."""
        return self._connection.in_transaction

    @property
    def is_empty(self) -> bool:
        """True if no request is left to be asked: pending, claimed, delayed or to be retried, but
        for those of dead hosts."""
        return not self.query(UNFINISHED)

    def cursor(self) -> sqlite3.Cursor:
        """Return a cursor whose rows are not checked, for the speed."""
        cursor = self._connection.cursor()
        cursor.row_factory = None
        return cursor

    def query(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the selected rows."""
        return self._connection.execute(statement, values).fetchall()

    def execute(
        self, statement: str, values: Sequence[object] | Mapping[str, object] = ()
    ) -> sqlite3.Cursor:
        """Run a statement that changes rows, with the next commit, or yields them one by one."""
        return self._connection.execute(statement, values)

    def drop(self, statement: str, values: Sequence[object] = ()) -> None:
        """Delete what may be large, without zeros over whole pages, which go through the log."""
        self.query("PRAGMA secure_delete = FAST")
        try:
            self.execute(statement, values)
        finally:
            self.query("PRAGMA secure_delete = ON")

    def execute_many(self, statement: str, values: Collection[Sequence[object]]) -> None:
        """Run a statement for each of the `values`, with the next commit."""
        if values:
            self._connection.executemany(statement, values)

    def meet(self, source: int, digest: bytes) -> bool:
        """Return True if the job has taken one of these that this start has not met, and meet it:
        what is repeated after a crash is matched by count, in any order."""
        meet = "UPDATE taken SET met = met + 1 WHERE source = ? AND digest = ? AND met < taken"
        return self.execute(meet, (source, digest)).rowcount == 1

    def take(self, source: int, digest: bytes) -> None:
        """Count one more of these as taken, which this start has met."""
        take = "INSERT INTO taken VALUES (?, ?, 1, 1) ON CONFLICT DO UPDATE SET"
        self.execute(f"{take} taken = taken + 1, met = met + 1", (source, digest))

    def commit(self, unreleased: Iterable[bytes] | None = ()) -> None:
        """Make all changes since the last commit durable, with the fingerprints that are released
        next, None for those of the last commit. Cost: an fsync."""
        self.last = self.before_commit()
        hexes = None if unreleased is None else json.dumps([each.hex() for each in unreleased])
        self._connection.execute(
            "UPDATE job SET commits = ?, unreleased = COALESCE(?, unreleased), last = ?",
            (self.commits + 1, hexes, self.last),
        )
        self._connection.execute("COMMIT")
        self.commits += 1

    def rollback(self) -> None:
        """Drop all changes since the last commit; afterwards only `close` may be called."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def close(self, *, clean: bool) -> None:
        """Close the file, marked as `clean` or not; never as clean with uncommitted changes. A
        clean one gives back its room if hardly any is in use."""
        try:
            if clean and not self.changed:
                with self._connection:
                    self._connection.execute("UPDATE job SET clean = 1")
                ((free,),) = self.query("PRAGMA freelist_count")
                ((pages,),) = self.query("PRAGMA page_count")
                if free > 0.9 * pages:
                    with suppress(sqlite3.Error):  # on a full disk, or while others read
                        self._connection.execute("VACUUM")
        finally:
            self._connection.close()


def named(path: object, error: Any) -> Any:
    """Return what SQLite raises as an error with the name of the file, and the remedy for a damaged
    one, whose numbers may be too large for SQLite; other errors as they are."""
    if not isinstance(error, (sqlite3.Error, OverflowError)):
        return error
    is_damaged = not isinstance(error, (sqlite3.OperationalError, sqlite3.ProgrammingError))
    remedy = "; restore it from a backup, or use a new JOBDIR" if is_damaged else ""
    return RequestFileError(f"{path}: {error}{remedy}")


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
    if (application := int.from_bytes(header[68:72], "big")) != schema.APPLICATION_ID:
        raise _refused(path, f"it is another program's (its id is {application:#x})")
    _require_version(path, int.from_bytes(header[60:64], "big"))
    return True


@contextmanager
def whole_job(job: JobDirectory, *, resets: bool = False) -> Iterator[RequestFile | None]:
    """Give the request file of `job`, read-only, None if it has none yet. Raises RequestFileError,
    and JobDirectoryError if its filter belongs to another request file, or to later commits than
    those of the file: requests that only the filter has would never be fetched; or if it has fewer
    layers than noted, but between rounds that `resets` it: a kill may leave a part of it then."""
    owner = stored_owner(job.filter)
    with file_at(job.requests) as file:
        if owner and (file is None or file.id != owner.job or file.commits < owner.commit):
            raise JobDirectoryError(
                f"{job.requests} is missing, is not the one that {job.filter} belongs to, or ends"
                f" before commit {owner.commit}: pages that {job.filter} has seen would be lost."
                f" Put back {job.requests.name}-wal, which belongs to it, or both from one copy of"
                " the stopped job, or use a new JOBDIR"
            )
        # one without an owner was imported, or made by hand
        if file is not None and (owner is not None or not job.has_filter):
            _require_layers(job, file, resets)
        yield file


@contextmanager
def file_at(path: Path) -> Iterator[RequestFile | None]:
    """Give the request file at `path`, read-only, None without one. Raises RequestFileError."""
    with ExitStack() as stack:
        file = None
        with _refusing(path):
            if check_header(path):
                _require_writable(path)
                file = RequestFile(stack.enter_context(looking(path)), path)
        yield file


def _require_layers(job: JobDirectory, found: RequestFile, resets: bool) -> None:
    for _, noted in found.query(_LAYERS, (resets,)):
        for number in range(noted if isinstance(noted, int) else 0):
            if not (path := layer_path(job.filter, number)).exists():
                raise JobDirectoryError(
                    f"{path} is missing: pages that the job has seen would be fetched again."
                    " Restore it from a backup, or use a new JOBDIR"
                )


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, sqlite3.OperationalError) as error:
        raise RequestFileError(
            f"{path} cannot be opened: {error}; remove the cause, then start again"
        ) from error
    except DAMAGED as error:
        raise _refused(path, error) from error


def _require_writable(path: Path) -> None:
    """Raise PermissionError before SQLite makes a log that it cannot write."""
    for each in (path, *path.parent.glob(f"{path.name}-*")):
        if not os.access(each, os.W_OK) and each.exists():  # a log may go meanwhile
            raise PermissionError(errno.EACCES, "it cannot be written", str(each))


@contextmanager
def looking(path: Path) -> Iterator[sqlite3.Connection]:
    """Give a read-only connection to a file whose tables are as they should be."""
    for left in range(100, -1, -1):
        with ExitStack() as stack:
            try:
                connection = stack.enter_context(closing(connect(path, reading_mode(path))))
                connection.execute("BEGIN")  # all that is read is of this moment
                _require_version(path, *connection.execute("PRAGMA user_version").fetchone())
            except (OSError, sqlite3.OperationalError) as error:  # others close it, its log goes
                if not (left and any(map(str(error).count, ("No such", "unable to", "readonly")))):
                    raise
                sleep(0.01)
                continue
            connection.row_factory = _typed
            schema.check(connection)
            yield connection
            return


def _create(path: Path) -> None:
    """Make an empty file; the process has the lock of its directory."""
    for leftover in filter(Path.is_file, path.parent.glob(".*.bloom.tmp*")):
        leftover.unlink(missing_ok=True)
    with replacing(path) as file, closing(connect(Path(file.name), "rw")) as connection:
        with connection:  # in one transaction: each costs a write to the disk
            connection.execute("BEGIN")
            schema.create(connection)
        _set_up(connection)


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


def reading_mode(path: Path) -> str:
    """Return the mode of SQLite in which nothing is changed beside the file: without a log no
    process has it open, and the index that a killed one has left is used if it is of that log."""
    log, index = (path.with_name(f"{path.name}-{end}") for end in ("wal", "shm"))
    if not log.exists():
        return "ro&immutable=1"
    left = index.exists() and not JobDirectory(path.parent).is_locked
    return "ro&readonly_shm=1" if left and _is_index_of(index, log) else "ro"


def _is_index_of(index: Path, log: Path) -> bool:
    """Return True if SQLite can read `log` by `index`: their salts are the same, or both are empty
    (https://sqlite.org/walformat.html). One that is killed as it begins a log leaves others."""
    with index.open("rb") as one, log.open("rb") as other:
        of_index, of_log = one.read(40), other.read(32)
    if len(of_log) < 32:
        return of_index[16:20] == bytes(4)  # the number of frames
    return of_log[16:24] == of_index[32:40]
