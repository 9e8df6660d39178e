"""The delta store in a directory: the marks of earlier rounds, in a table (`table.py`), and in
slices of filters (`slice_store.py`).

New marks go into the table, or into slices with BLOOM_DELTA_MEMORY = "bloom". Both are asked: a row
of the table decides, and slices count for pages without one.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from math import inf
from pathlib import Path

from ..errors import FilterFileError, IncompatibleFilterError
from ..reporting import counted
from .slice_store import SliceStore
from .slices import Shape, Slice, read
from .table import Row, Table


class FileDeltaStore:
    """The delta store in `directory`, which need not exist. Any method may raise OSError or
    BloomError."""

    def __init__(
        self,
        directory: Path,
        shape: Shape,
        clock: Callable[[], float] = time.time,
        *,
        memory: str = "table",
    ) -> None:
        self.directory = directory
        self.name = str(directory)
        self.shape = shape
        self.clock = clock
        self.slices = SliceStore(directory, shape, clock)
        self.table = Table(directory)
        self._has_table = memory == "table"
        """True if new marks go into the table."""

    @property
    def is_empty(self) -> bool:
        """True if the store had no marks when it was opened."""
        return not self.slices.count and not self.table.count

    @property
    def nbytes(self) -> int:
        """Bytes of the table when it was opened, and of the slices."""
        return self.table.nbytes + self.slices.nbytes

    @property
    def oldest(self) -> float | None:
        """Time of the oldest mark, or the start of its slice, in seconds since the epoch; None
        without marks."""
        found = (self.table.oldest, self.slices.oldest)
        return min((each for each in found if each is not None), default=None)

    @property
    def holds(self) -> str:
        """What was there when the store was opened, and how long slices count in the
        place of which there is a table now."""
        pages, slices = counted(self.table.count, "page"), counted(self.slices.count, "slice")
        if self.digests:
            pages += f", {counted(self.digests, 'digest')}"
        if not self._has_table:
            return f"{slices} and {pages}" if self.table.count else slices
        if not self.slices.count:
            return pages
        last = max(self.slices.ends, default=self.clock())
        asked = "as long as they are there"
        if last != inf:
            asked = time.strftime("until %Y-%m-%d %H:%M", time.localtime(last))
        return f"{pages}, and {slices} that count {asked}"

    def open(self) -> None:
        """Open what counts, and remove what has expired. Later additions of other processes count
        at once."""
        self.slices.open()
        self.table.open(self.shape.reach, self.clock())

    def look(self) -> None:
        """Open what counts without a change to the directory. Raises UnfinishedWriteError."""
        self.slices.look()
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
        return read(self.directory).identity or self.table.identity

    def known_until(self, key: bytes, period: float | None = None) -> float:
        """Return the time until which `key` is sure to count as marked in the last `period`
        seconds, at most those of the store; 0 if it does not. Cost: 10 µs, and 1 µs a slice."""
        reach = self.shape.reach
        period = reach if period is None else min(period, reach)
        until = self.table.until(key, period, self.clock())
        if until is None:
            until = 0.0
            if self.slices.knows(key, period):
                until = min(self.slices.ends, default=inf)
        return until

    def knows(self, key: bytes, period: float | None = None) -> bool:
        """Return True if `key` was marked in the last `period` seconds, at most those of the store;
        in a slice, up to a slice before."""
        return bool(self.known_until(key, period))

    def digest(self, key: bytes) -> bytes | None:
        """Return the digest of the page of `key`, None without one. Cost: 10 µs."""
        return self.table.digest(key)

    def add(self, rows: Iterable[Row | tuple[bytes, float]]) -> None:
        """Add pages, durably: those with a time are done. Adding them again changes nothing, and an
        older row takes nothing from a newer one."""
        now, shape = self.clock(), self.shape
        found = [
            row._replace(time=row.time and min(row.time, now))
            for row in (Row(*each) for each in rows)
        ]
        if not found:
            return
        if self._has_table:
            self.table.add(found, now, shape.identity, shape.reach)
            return
        marks = [(key, when) for key, when, _ in found if when is not None]
        if marks:
            self.slices.add(marks)
            self.table.remove(key for key, _ in marks)

    @property
    def digests(self) -> int:
        """Number of pages with a digest, when the store was opened."""
        return self.table.digests

    def counts(self, before: float | None) -> tuple[int, dict[str, int]]:
        """Return the number of pages in the table, and of keys in each slice: all, or those of
        `before`."""
        return self.table.count_before(before), self.slices.counts(before)

    def marks(self, before: float | None) -> Iterator[Row]:
        """Yield the rows of the table, or those of `before`."""
        return self.table.rows(before)

    @property
    def unlisted(self) -> int:
        """Number of slices whose keys `marks` cannot yield."""
        return self.slices.count

    def forget(self, keys: Sequence[bytes]) -> int:
        """Let the pages of `keys` not be done any more, and have no digest; return how many were or
        had."""
        known = sum(self.knows(key) or self.digest(key) is not None for key in keys)
        in_slices = [key for key in keys if self.slices.knows(key)]
        self.table.remove(keys)
        if in_slices:
            self.table.undo(in_slices, self.identity)
        return known

    def drop_older(self, seconds: float) -> tuple[int, list[Slice]]:
        """Remove the marks that are older than `seconds` from the table, and the slices that ended
        before; return how many marks, and the slices."""
        removed = self.table.remove_older(self.clock() - seconds)
        return removed, self.slices.drop_older(seconds)

    def merge(self, others: Sequence[Path]) -> int:
        """Add the marks of the stores in `others`, once each of them was found readable. What a
        merge that was killed has not done, another one does. Return the number of slices
        afterwards."""
        self.table.roll_back()
        with ExitStack() as stack:
            tables = {each: Table(each) for each in (*others, self.directory)}
            identity = None
            for directory, table in reversed(tables.items()):
                stack.callback(table.close)
                table.look()
                slices = read(directory)
                if not slices.slices and not table.total:
                    continue
                theirs = table.identity if table.total else slices.identity
                if identity not in (None, theirs):
                    raise IncompatibleFilterError(
                        f"{directory} has marks of another fingerprinter than {self.directory}:"
                        " give delta stores of one REQUEST_FINGERPRINTER_CLASS"
                    )
                identity = theirs
            own = tables.pop(self.directory)
            own.close()
            filled = [table for table in tables.values() if table.is_open]

            def add_rows() -> None:
                if filled:
                    if not own.total:
                        own.clear(identity or "")
                    own.merge(filled, identity or "", max(each.longest for each in filled))

            return self.slices.merge(others, add_rows)

    def clear(self) -> None:
        """Remove all marks."""
        self.slices.clear()
        self.table.clear(self.shape.identity)

    def close(self) -> None:
        """Close table and slices. A second call does nothing."""
        self.slices.close()
        self.table.close()
