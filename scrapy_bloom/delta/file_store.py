"""The delta store in a directory: the pages of earlier rounds, in a table (`table.py`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FilterFileError, IncompatibleFilterError
from ..reporting import counted
from .settings import Lifetime
from .table import Row, Table

if TYPE_CHECKING:
    from .redis_store import Slice


class FileDeltaStore(Table):
    """The delta store in `directory`, which need not exist. Any method may raise OSError or
    BloomError."""

    def __init__(
        self, directory: Path, lifetime: Lifetime, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(directory)
        self.directory = directory
        self.name = str(directory)
        self.lifetime = lifetime
        self.clock = clock

    @property
    def is_empty(self) -> bool:
        """True if the store had no marks when it was opened."""
        return not self.count

    @property
    def holds(self) -> str:
        """The number of pages and digests when the store was opened."""
        pages = counted(self.count, "page")
        return f"{pages}, {counted(self.digests, 'digest')}" if self.digests else pages

    def open(self) -> None:
        """Open the table, and remove what has expired. Later additions of other processes count
        at once."""
        self._open("rw")
        if self._connection is not None:
            self._record(self.lifetime.reach)
            self._expire(self.clock())
            self._count()

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
        return self.until(key, period, self.clock())

    def knows(self, key: bytes, period: float | None = None) -> bool:
        """Return True if `key` was marked in the last `period` seconds, at most those of the
        store."""
        return bool(self.known_until(key, period))

    def add(self, rows: Iterable[Row | tuple[bytes, float]]) -> None:
        """Add pages, durably: those with a time are done. Adding them again changes nothing, and an
        older row takes nothing from a newer one."""
        now, lifetime = self.clock(), self.lifetime
        found = [
            row._replace(time=row.time and min(row.time, now))
            for row in (Row(*each) for each in rows)
        ]
        if found:
            self.write(found, now, lifetime.identity, lifetime.reach)

    def counts(self, before: float | None) -> tuple[int, dict[str, int]]:
        """Return the number of pages: all, or those of `before`; and no slices."""
        if self._connection is None or before is None:
            return self.count, {}
        with self._naming():
            query = "SELECT COUNT(*) FROM pages WHERE time < ?"
            return int(self._connection.execute(query, (before,)).fetchone()[0]), {}

    def forget(self, keys: Sequence[bytes]) -> int:
        """Let the pages of `keys` not be done any more, and have no digest; return how many were or
        had."""
        known = sum(self.knows(key) or self.digest(key) is not None for key in keys)
        self.remove(keys)
        return known

    def drop_older(self, seconds: float) -> tuple[int, list[Slice]]:
        """Remove the marks that are older than `seconds`; return how many, and no slices."""
        self._open("rw")
        when = self.clock() - seconds
        return 0 if self._connection is None else self._remove_older(when), []

    def merge(self, others: Sequence[Path]) -> None:
        """Add the marks of the stores in `others`, once each of them was found readable. What a
        merge that was killed has not done, another one does."""
        self.roll_back()
        with ExitStack() as stack:
            tables = {each: Table(each) for each in (*others, self.directory)}
            identity = None
            for directory, table in reversed(tables.items()):
                stack.callback(table.close)
                table.look()
                if not table.total:
                    continue
                if identity not in (None, table.identity):
                    raise IncompatibleFilterError(
                        f"{directory} has marks of another fingerprinter than {self.directory}:"
                        " give delta stores of one REQUEST_FINGERPRINTER_CLASS"
                    )
                identity = table.identity
            own = tables.pop(self.directory)
            own.close()
            filled = [table for table in tables.values() if table.is_open]
            if filled:
                if not own.total:
                    own.empty(identity or "")
                own.join(filled, identity or "", max(each.longest for each in filled))

    def clear(self) -> None:
        """Remove all marks."""
        self.empty(self.lifetime.identity)
