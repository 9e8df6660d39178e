"""The marks and digests of this round: a table of `requests.sqlite`, or of a temporary database.

Rows are written in the commit that acknowledges their requests. After that commit the rows of
`delta_pages` are added to the delta store. They are added again at the next start, as a crash may
have lost them; adding twice changes nothing, but in Redis: see `DeltaCrawl`. They stay until the
round is over, since it may repeat its own pages, and counts each of them once: in the row that has
its `verdict`.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ..sqlite.schema import PAGES_OF_A_ROUND
from .file_store import FACTS, Row

if TYPE_CHECKING:
    from ..sqlite.job_file import RequestFile

NEW, CHANGED, UNCHANGED = "new", "changed", "unchanged"
"""The verdicts on a page that has a digest."""
_PUT = "INSERT INTO delta_pages VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET " + ", ".join(  # noqa: S608 - no input
    f"{name} = COALESCE(excluded.{name}, {name})" for name in ("time", *FACTS, "verdict")
)


class Temporary(sqlite3.Connection):
    """A database that ends with the process; beyond its cache of 2 MB it is in a temporary file."""

    def __init__(self) -> None:
        super().__init__("", isolation_level=None)
        self.execute(PAGES_OF_A_ROUND)

    def query(self, statement: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return the selected rows."""
        return self.execute(statement, values).fetchall()


class Marks:
    """The table, read and written through `executor`; `verdicts` counts its pages by verdict. Each
    method may raise sqlite3.Error."""

    def __init__(self, executor: RequestFile | Temporary) -> None:
        self._executor = executor
        query = (
            "SELECT verdict, COUNT(*) FROM delta_pages WHERE verdict IS NOT NULL GROUP BY verdict"
        )
        self.verdicts = Counter[str](dict(executor.query(query)))

    def add(self, rows: Sequence[Row], verdict: str | None = None) -> None:
        """Record the rows of a page, one for each of its keys. The last one is that of the request
        that led to it; its first `verdict` other than UNCHANGED stays."""
        if verdict is not None:
            _, earlier = self.find(rows[-1].key)
            self.verdicts.subtract([earlier] if earlier else [])
            verdict = earlier if earlier not in (None, UNCHANGED) else verdict
            self.verdicts[verdict] += 1
        for row in rows:
            self._executor.execute(_PUT, (*row, verdict if row is rows[-1] else None))

    def find(self, key: bytes) -> tuple[bytes | None, str | None]:
        """Return digest and verdict of the page of `key` in this round, None for what is not
        there."""
        query = "SELECT digest, verdict FROM delta_pages WHERE key = ?"
        ((digest, verdict),) = self._executor.query(query, (key,)) or [(None, None)]
        return digest, verdict

    def __contains__(self, key: bytes) -> bool:
        """Return True if this round has a row for the page of `key`. Cost: some µs."""
        return bool(self._executor.query("SELECT 1 FROM delta_pages WHERE key = ?", (key,)))

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows that say anything to later rounds."""
        query = "SELECT key, time AS done, digest, version, validators FROM delta_pages"
        query += " WHERE COALESCE(time, digest, version, validators) IS NOT NULL"
        return map(Row._make, self._executor.execute(query))

    def forget(self, *columns: str) -> None:
        """Let no row have what is in these `columns`: it stays one of this round."""
        emptied = ", ".join(f"{name} = NULL" for name in columns)
        self._executor.execute(f"UPDATE delta_pages SET {emptied}")  # noqa: S608 - no input

    def clear(self) -> None:
        """Remove all rows."""
        self._executor.execute("DELETE FROM delta_pages")

    def forget_verdicts(self) -> None:
        """Let no page be counted any more."""
        self.verdicts.clear()
        self._executor.execute("UPDATE delta_pages SET verdict = NULL WHERE verdict IS NOT NULL")
