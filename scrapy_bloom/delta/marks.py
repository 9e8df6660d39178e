"""What this round has done: tables of `requests.sqlite`, or of a database in memory.

The rows are written in the commit that acknowledges the requests they are about. The keys of
`delta_marks` go into the memory after that commit, and once more at the next start, since
nobody knows whether they arrived: adding twice changes nothing. They stay until the round is
over, since what this round has done it may do again.

A list counts when the round is over and nothing that came of it has failed, lists among that
included: each request knows the nearest list that it came of, each list the one before it,
and `delta_failed` holds the lists of what has failed. What another page had led to before
knows that one only: `delta_shared` holds what of a list that is, and it must be done itself.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..sqlite_backend.schema import MARKS
from .settings import KEY_BYTES

if TYPE_CHECKING:
    from ..feeds.outbox import Executor


_OF_LISTS = ("delta_lists", "delta_failed", "delta_shared")


class Temporary:
    """A database that is gone with the process: what does not fit into its cache of 2 MB is in a
    temporary file."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None)
        for statement in MARKS:
            self._connection.execute(statement)

    def query(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return what a statement selects."""
        return self._connection.execute(statement, values).fetchall()

    def iterate(self, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield what a statement selects."""
        return self._connection.execute(statement, values)

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run a statement that changes something."""
        return self._connection.execute(statement, values)


class Marks:
    """The tables, by way of `executor`. Every method may raise sqlite3.Error."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._is_empty = not executor.query("SELECT 1 FROM delta_marks LIMIT 1")

    def add(self, keys: Sequence[bytes], time: float) -> None:
        """Note that the page of these keys is done."""
        self._is_empty = False
        for key in keys:
            self._executor.execute(
                "INSERT INTO delta_marks VALUES (?, ?) ON CONFLICT DO UPDATE SET"
                " time = excluded.time",
                (key, time),
            )

    def __contains__(self, key: bytes) -> bool:
        """Return True if this round has done the page of `key`. Cost: some µs."""
        return not self._is_empty and bool(
            self._executor.query("SELECT 1 FROM delta_marks WHERE key = ?", (key,))
        )

    def __iter__(self) -> Iterator[tuple[bytes, float]]:
        """Yield all keys with their times."""
        return self._executor.iterate("SELECT key, time FROM delta_marks")

    def add_list(self, keys: Sequence[bytes], parent: bytes | None, time: float) -> None:
        """Note that the list of these keys is done, but for what came of it; `parent` is the
        list that it came of itself."""
        self._executor.execute(
            "INSERT INTO delta_lists VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " keys = excluded.keys, parent = excluded.parent, time = excluded.time",
            (keys[0], b"".join(keys), parent, time),
        )

    def fail(self, key: bytes) -> None:
        """Note that something has failed that came of the list of `key`."""
        self._executor.execute("INSERT OR IGNORE INTO delta_failed VALUES (?)", (key,))

    def share(self, key: bytes, child: bytes) -> None:
        """Note that the list of `key` leads to `child`, as another page does."""
        self._executor.execute("INSERT OR IGNORE INTO delta_shared VALUES (?, ?)", (key, child))

    def forget_lists(self) -> None:
        """Let no list count that was added."""
        self._executor.execute("DELETE FROM delta_lists")

    def conclude(self) -> None:
        """Let the lists count of which nothing has failed: the round is over."""
        sound = self._executor.query(
            "WITH RECURSIVE came_of(child, list) AS (SELECT child, list FROM delta_shared UNION ALL"
            " SELECT key, parent FROM delta_lists WHERE parent IS NOT NULL),"
            " failed(key) AS (SELECT key FROM delta_failed"
            " UNION SELECT list FROM delta_shared WHERE child NOT IN (SELECT key FROM delta_marks)"
            " AND child NOT IN (SELECT key FROM delta_lists)"
            " UNION SELECT list FROM came_of JOIN failed ON child = failed.key)"
            " SELECT keys, time FROM delta_lists WHERE key NOT IN (SELECT key FROM failed)"
        )
        for keys, time in sound:
            starts = range(0, len(keys), KEY_BYTES)
            self.add([keys[start : start + KEY_BYTES] for start in starts], time)
        for table in _OF_LISTS:
            self._executor.execute(f"DELETE FROM {table}")  # noqa: S608 - no input

    def clear(self) -> None:
        """Forget everything."""
        self._is_empty = True
        for table in ("delta_marks", *_OF_LISTS):
            self._executor.execute(f"DELETE FROM {table}")  # noqa: S608 - no input
