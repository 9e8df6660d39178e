"""The marks of this round: tables of `requests.sqlite`, or of a temporary database.

Rows are written in the commit that acknowledges their requests. After that commit the keys of
`delta_marks` are added to the delta store. They are added again at the next start, as a crash may
have lost them; adding twice changes nothing. They stay until the round is over, since a round may
repeat its own pages.

An index page is marked when the round is over and none of its descendants has failed. Each request
knows its nearest index page, and each index page the one before it; `delta_failed` holds the index
pages of failed requests. A request that another page had yielded before knows that page only:
`delta_shared` holds such requests of an index page, and they must be done themselves.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..sqlite_backend.schema import MARKS
from .settings import KEY_BYTES

if TYPE_CHECKING:
    from ..feeds.outbox import Executor


_OF_INDEX_PAGES = ("delta_lists", "delta_failed", "delta_shared")


class Temporary:
    """A database that ends with the process; beyond its cache of 2 MB it is in a temporary file."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None)
        for statement in MARKS:
            self._connection.execute(statement)

    def query(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the selected rows."""
        return self._connection.execute(statement, values).fetchall()

    def iterate(self, statement: str, values: Sequence[object] = ()) -> Iterator[tuple[Any, ...]]:
        """Yield the selected rows."""
        return self._connection.execute(statement, values)

    def execute(self, statement: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        """Run a statement that changes the database."""
        return self._connection.execute(statement, values)


class Marks:
    """The tables, read and written through `executor`. Each method may raise sqlite3.Error."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._is_empty = not executor.query("SELECT 1 FROM delta_marks LIMIT 1")

    def add(self, keys: Sequence[bytes], time: float) -> None:
        """Record that the page of these keys is done."""
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

    def add_index_page(self, keys: Sequence[bytes], parent: bytes | None, time: float) -> None:
        """Record that the index page of these keys is done, apart from its descendants. `parent` is
        its own index page."""
        self._executor.execute(
            "INSERT INTO delta_lists VALUES (?, ?, ?, ?) ON CONFLICT DO UPDATE SET"
            " keys = excluded.keys, parent = excluded.parent, time = excluded.time",
            (keys[0], b"".join(keys), parent, time),
        )

    def fail(self, key: bytes) -> None:
        """Record that a descendant of the index page of `key` has failed."""
        self._executor.execute("INSERT OR IGNORE INTO delta_failed VALUES (?)", (key,))

    def share(self, key: bytes, child: bytes) -> None:
        """Record that the index page of `key` leads to `child`, as another page does."""
        self._executor.execute("INSERT OR IGNORE INTO delta_shared VALUES (?, ?)", (key, child))

    def forget_index_pages(self) -> None:
        """Remove all index pages that were added."""
        self._executor.execute("DELETE FROM delta_lists")

    def conclude(self) -> None:
        """Mark the index pages without failed descendants. Called when the round is over."""
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
        for table in _OF_INDEX_PAGES:
            self._executor.execute(f"DELETE FROM {table}")  # noqa: S608 - no input

    def clear(self) -> None:
        """Remove all rows."""
        self._is_empty = True
        for table in ("delta_marks", *_OF_INDEX_PAGES):
            self._executor.execute(f"DELETE FROM {table}")  # noqa: S608 - no input
