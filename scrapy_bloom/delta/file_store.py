"""The delta store in a directory: the pages of earlier rounds, in a table (`table.py`)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FilterFileError, IncompatibleFilterError
from ..reporting import counted
from .settings import Lifetime
from .table import Row, Table

if TYPE_CHECKING:
    from .redis_store import Slice


class FileDeltaStore:
    """The delta store in `directory`, which need not exist. Any method may raise OSError or
    BloomError."""

    def __init__(
        self, directory: Path, lifetime: Lifetime, clock: Callable[[], float] = time.time
    ) -> None:
        self.directory = directory
        self.name = str(directory)
        self.lifetime = lifetime
        self.clock = clock
        self.table = Table(directory)

    @property
    def is_empty(self) -> bool:
        """True if the store had no marks when it was opened."""
        return not self.table.count

    @property
    def nbytes(self) -> int:
        """Bytes of the table when it was opened."""
        return self.table.nbytes

    @property
    def oldest(self) -> float | None:
        """Time of the oldest mark in seconds since the epoch; None without marks."""
        return self.table.oldest

    @property
    def holds(self) -> str:
        """The number of pages and digests when the store was opened."""
        pages = counted(self.table.count, "page")
        return f"{pages}, {counted(self.digests, 'digest')}" if self.digests else pages

    def open(self) -> None:
        """Open the table, and remove what has expired. Later additions of other processes count
        at once."""
        self.table.open(self.lifetime.reach, self.clock())

    def look(self) -> None:
        """Open the table without a change to the directory. Raises UnfinishedWriteError."""
        self.table.look()

    def require_writable(self) -> None:
        """Raise FilterFileError if this process may not write to the store, or make it."""
        directory = next(p for p in (self.directory, *self.directory.parents) if p.exists())
        for path in (self.table.path, directory):
            if path.exists() and not os.access(path, os.W_OK):
                raise FilterFileError(
                    f"{path} cannot be written to, and pages are marked there: change its rights,"
                    " or choose another BLOOM_DELTA_DIR, or set BLOOM_DELTA_READ_ONLY to True"
                )

    @property
    def identity(self) -> str:
        """The text about the fingerprinter whose marks are there, empty without any."""
        return self.table.identity

    def known_until(self, key: bytes, period: float | None = None) -> float:
        """Return the time until which `key` counts as marked in the last `period` seconds, at most
        those of the store; 0 if it does not. Cost: 10 µs."""
        reach = self.lifetime.reach
        period = reach if period is None else min(period, reach)
        return self.table.until(key, period, self.clock())

    def knows(self, key: bytes, period: float | None = None) -> bool:
        """Return True if `key` was marked in the last `period` seconds, at most those of the
        store."""
        return bool(self.known_until(key, period))

    def digest(self, key: bytes) -> bytes | None:
        """Return the digest of the page of `key`, None without one. Cost: 10 µs."""
        return self.table.digest(key)

    def add(self, rows: Iterable[Row | tuple[bytes, float]]) -> None:
        """Add pages, durably: those with a time are done. Adding them again changes nothing, and an
        older row takes nothing from a newer one."""
        now, lifetime = self.clock(), self.lifetime
        found = [
            row._replace(time=row.time and min(row.time, now))
            for row in (Row(*each) for each in rows)
        ]
        if found:
            self.table.add(found, now, lifetime.identity, lifetime.reach)

    @property
    def digests(self) -> int:
        """Number of pages with a digest, when the store was opened."""
        return self.table.digests

    def counts(self, before: float | None) -> tuple[int, dict[str, int]]:
        """Return the number of pages: all, or those of `before`; and no slices."""
        return self.table.count_before(before), {}

    def marks(self, before: float | None) -> Iterator[Row]:
        """Yield the rows of the table, or those of `before`."""
        return self.table.rows(before)

    def forget(self, keys: Sequence[bytes]) -> int:
        """Let the pages of `keys` not be done any more, and have no digest; return how many were or
        had."""
        known = sum(self.knows(key) or self.digest(key) is not None for key in keys)
        self.table.remove(keys)
        return known

    def drop_older(self, seconds: float) -> tuple[int, list[Slice]]:
        """Remove the marks that are older than `seconds`; return how many, and no slices."""
        return self.table.remove_older(self.clock() - seconds), []

    def merge(self, others: Sequence[Path]) -> None:
        """Add the marks of the stores in `others`, once each of them was found readable. What a
        merge that was killed has not done, another one does."""
        self.table.roll_back()
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
                    own.clear(identity or "")
                own.merge(filled, identity or "", max(each.longest for each in filled))

    def clear(self) -> None:
        """Remove all marks."""
        self.table.clear(self.lifetime.identity)

    def close(self) -> None:
        """Close the table. A second call does nothing."""
        self.table.close()
