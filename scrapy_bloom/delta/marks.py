"""The marks of this round: a table of `requests.sqlite`, or of a temporary database.

Rows are written in the commit that acknowledges their requests. After that commit the keys of
`delta_marks` are added to the delta store. They are added again at the next start, as a crash may
have lost them; adding twice changes nothing. They stay until the round is over, since a round may
repeat its own pages.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..sqlite_backend.schema import MARKS_OF_A_ROUND

if TYPE_CHECKING:
    from ..feeds.outbox import Executor


class Temporary:
    """A database that ends with the process; beyond its cache of 2 MB it is in a temporary file."""

    def __init__(self) -> None:
        self._connection = sqlite3.connect("", isolation_level=None)
        self._connection.execute(MARKS_OF_A_ROUND)

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
    """The table, read and written through `executor`. Each method may raise sqlite3.Error."""

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

    def clear(self) -> None:
        """Remove all rows."""
        self._is_empty = True
        self._executor.execute("DELETE FROM delta_marks")
