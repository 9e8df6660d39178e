"""The slices of a delta store in a directory: those of 0.2.0, and of BLOOM_DELTA_MEMORY = "bloom".

The directory has `delta.json`, which lists the slices, and for each slice a directory with a
growing filter. With a period of N days a slice is N/8 days long, and counts until N days after its
end. So a mark counts for N days, and at most one slice longer. Nine slices count at a time, so
each has a ninth of the error rate.

A process locks the store for the milliseconds of a write or of the opening; later reads take no
lock. So any number of processes may use one store. A slice is on the disk before `delta.json`
names it, and out of `delta.json` before it is removed.

Each crawl has its own period. Slices older than the longest period of any crawl are expired, and
removed.

A wrong clock costs repetitions, not the store. A slice from the future counts as made when it was
first found, until its time comes. An expired slice stays for one slice of time after it was first
found expired, and counts again if the clock is set back.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, replace
from itertools import count
from pathlib import Path

from ..bloom.growing import ScalableBloomFilter
from ..bloom.removal import remove_filter
from ..errors import FilterFileError, FilterLockedError
from ..files import DirectoryLock, make_directory, shared_lock, sync_directory
from .slices import MANIFEST, SLICES, Contents, Shape, Slice, read, write

_LOCK = "lock"
_COPY = "slice.tmp"
"""The directory of a slice while it is copied."""
_REMEDY = "start afresh with BLOOM_DELTA_RESET = True"
_PATIENCE = 10.0
"""Seconds to wait for a process that has the lock."""


class SliceStore:
    """The slices in `directory`, which need not exist. Any method may raise OSError or
    BloomError."""

    def __init__(
        self, directory: Path, shape: Shape, clock: Callable[[], float] = time.time
    ) -> None:
        self.directory = directory
        self.shape = shape
        self.clock = clock
        self._open: list[tuple[Slice, ScalableBloomFilter]] = []

    @property
    def count(self) -> int:
        """Number of slices that were opened."""
        return len(self._open)

    @property
    def nbytes(self) -> int:
        """Bytes of the bits and of the exact tables."""
        return sum(each.nbytes + each.table_nbytes for _, each in self._open)

    @property
    def oldest(self) -> float | None:
        """Start of the oldest slice that was opened, in seconds since the epoch; None without."""
        return min((each.start for each, _ in self._open), default=None)

    def counts(self, before: float | None) -> dict[str, int]:
        """Return the number of keys of each slice that was opened, by its name: of those that ended
        `before`."""
        return {
            each.name: len(found)
            for each, found in self._open
            if before is None or each.end < before
        }

    @property
    def ends(self) -> list[float]:
        """Times at which slices that count cease to do so."""
        now, width = self.clock(), self.shape.width
        ends = [each.until(now, width) + self.shape.reach for each, _ in self._open]
        return [end for end in ends if end >= now]

    def open(self) -> None:
        """Remove expired slices, and open those that count, read-only. Later additions of other
        processes to them are seen at once."""
        self.close()
        if (self.directory / MANIFEST).exists():
            with self.locked():
                self._open_slices(self._put_in_order(read(self.directory)))

    def look(self) -> None:
        """Open the slices that count, as `open` does, without a change to the directory."""
        self.close()
        with shared(self.directory):
            self._open_slices(read(self.directory).slices)

    def knows(self, key: bytes, period: float | None = None) -> bool:
        """Return True if `key` was marked in the last `period` seconds, at most those of the store,
        or up to a slice before. Cost: about 1 µs a slice."""
        now, reach = self.clock(), self.shape.reach
        period = reach if period is None else min(period, reach)
        return any(
            self._counts(each, period, now) and key in bloom_filter
            for each, bloom_filter in self._open
        )

    def add(self, marks: Iterable[tuple[bytes, float]]) -> None:
        """Add keys with the times of their marks, durably. Adding them again changes nothing."""
        now = self.clock()
        by_start: dict[float, list[tuple[bytes, float]]] = {}
        for key, when in marks:
            when = min(when, now)
            by_start.setdefault(self._start_of(when), []).append((key, when))
        if not by_start:
            return
        make_directory(self.directory, 0o700)
        with self.locked():
            found = read(self.directory, self.shape.identity)
            before = asdict(found)
            for start, entries in sorted(by_start.items()):
                self._add(found, start, entries, now)
            found.identity = found.identity or self.shape.identity
            found.longest = max(found.longest, self.shape.reach)
            if asdict(found) != before:
                write(self.directory, found)

    def clear(self) -> None:
        """Remove all slices."""
        self.close()
        if (self.directory / MANIFEST).exists():
            with self.locked():
                write(self.directory, Contents([], self.shape.identity))
                self._remove_leftovers([])

    def drop_older(self, seconds: float) -> list[Slice]:
        """Remove the slices that ended more than `seconds` ago; return them."""
        now = self.clock()
        if not (self.directory / MANIFEST).exists():
            return []
        with self.locked():
            found = read(self.directory)
            old = [each for each in found.slices if each.end < now - seconds]
            kept = [each for each in found.slices if each not in old]
            write(self.directory, replace(found, slices=kept))
            self._remove_leftovers(kept)
        return old

    def merge(self, others: Sequence[Path], then: Callable[[], None]) -> int:
        """Add copies of the slices of the stores in `others`, each with its error rate: all, or
        none after an error or a kill. Call `then` when they are on the disk, before they count.
        Return the number of slices afterwards."""
        with ExitStack() as stack:
            stack.enter_context(self.locked())
            found = read(self.directory)
            before = len(found.slices)
            stack.callback(lambda: self._remove_leftovers(read(self.directory).slices))
            for other in others:
                stack.enter_context(shared(other))
                theirs = read(other)
                found.identity = theirs.identity or found.identity
                found.longest = max(found.longest, theirs.longest)
                for each in theirs.slices:
                    open_slice(other / each.name, read_only=True).close()
                    name = self._new_name(found.slices)
                    self._copy(other / each.name, name)
                    found.slices.append(replace(each, name=name))
            sync_directory(self.directory)
            then()
            if len(found.slices) > before:
                write(self.directory, found)
        return len(found.slices)

    def close(self) -> None:
        """Close the slices. A second call does nothing."""
        opened, self._open = self._open, []
        for _, bloom_filter in opened:
            bloom_filter.close()

    def _start_of(self, when: float) -> float:
        width = self.shape.width
        return when // width * width if width else 0.0

    def _add(
        self, found: Contents, start: float, entries: list[tuple[bytes, float]], now: float
    ) -> None:
        shape, last = self.shape, max(when for _, when in entries)
        goes_on = shape.period is None
        if shape.period is not None and start + shape.width + shape.period < now:
            return  # these marks have expired already
        for each in found.slices:
            if (
                each.goes_on == goes_on
                and (goes_on or (each.start, each.end) == (start, start + shape.width))
                and each.error_rate <= shape.slice_error_rate
                and each.exact == shape.exact
            ):
                bloom_filter = open_slice(self.directory / each.name)
                break
        else:
            first = min(when for _, when in entries) if goes_on else start
            end = last if goes_on else start + shape.width
            each = Slice(
                self._new_name(found.slices),
                first,
                end,
                shape.slice_error_rate,
                shape.exact,
                goes_on,
            )
            bloom_filter = ScalableBloomFilter(
                shape.slice_capacity,
                shape.slice_error_rate,
                self.directory / each.name,
                identity=shape.identity,
                exact=shape.exact,
            )
            found.slices.append(each)
        if goes_on:
            each.end = max(each.end, last)
        with bloom_filter:
            for key, _ in entries:
                bloom_filter.add(key)

    def _new_name(self, slices: list[Slice]) -> str:
        self._remove_leftovers(slices)
        first = max((int(each.name) for each in slices), default=-1) + 1
        return next(str(n) for n in count(first) if not (self.directory / str(n)).exists())

    def _open_slices(self, slices: list[Slice]) -> None:
        now, opened = self.clock(), []
        with ExitStack() as undo:
            for each in slices:
                if self._counts(each, self.shape.reach, now):
                    bloom_filter = open_slice(self.directory / each.name, read_only=True)
                    undo.callback(bloom_filter.close)
                    opened.append((each, bloom_filter))
            undo.pop_all()
        self._open = opened

    def _counts(self, each: Slice, period: float, now: float) -> bool:
        return each.until(now, self.shape.width) + period >= now

    def _put_in_order(self, found: Contents) -> list[Slice]:
        """Record which slices are expired or from the future, and remove those that have been
        expired for the time of a slice; return the others."""
        now, before = self.clock(), asdict(found)
        found.longest = longest = max(found.longest, self.shape.reach)
        width = longest / SLICES
        kept = []
        for each in found.slices:
            if each.start <= now:
                each.met = None
            elif each.met is None or each.met > now:
                each.met = now
            if each.until(now, width) + longest >= now:
                each.expired = None
            elif each.expired is None or each.expired > now:
                each.expired = now
            elif now >= each.expired + width:
                continue
            kept.append(each)
        found.slices = kept
        if asdict(found) != before:
            write(self.directory, found)
            self._remove_leftovers(kept)
        return kept

    def _copy(self, source: Path, name: str) -> None:
        """Make a durable copy of the slice at `source`, complete as soon as it is called `name`."""
        copy = self.directory / _COPY
        for path in shutil.copytree(source, copy).iterdir():
            with path.open("rb") as file:
                os.fsync(file.fileno())
        sync_directory(copy)
        copy.rename(self.directory / name)

    def _remove_leftovers(self, kept: list[Slice]) -> None:
        """Remove all directories of slices but those of `kept`."""
        shutil.rmtree(self.directory / _COPY, ignore_errors=True)
        names = {each.name for each in kept}
        for path in self.directory.iterdir():
            if path.name.isdecimal() and path.name not in names and path.is_dir():
                remove_filter(path)

    def locked(self) -> AbstractContextManager[None]:
        """Lock the store for the length of a context, after at most 10 s of waiting. Raises
        FilterLockedError."""
        return _locked(lambda: DirectoryLock(self.directory, _LOCK))


def shared(directory: Path) -> AbstractContextManager[None]:
    """Keep other processes from writing to the store in `directory` for the length of a context,
    without a change to it. Raises FilterLockedError after 10 s of waiting."""
    return _locked(lambda: shared_lock(directory / _LOCK))


@contextmanager
def _locked(lock: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """Enter the context of `lock`, which raises FilterLockedError while another process has the
    lock, as soon as that is possible."""
    deadline = time.monotonic() + _PATIENCE
    with ExitStack() as stack:
        while True:
            try:
                stack.enter_context(lock())
                break
            except FilterLockedError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.01)
        yield


def open_slice(path: Path, *, read_only: bool = False) -> ScalableBloomFilter:
    """Return the filter of the slice at `path`. Raises FilterFileError, OSError."""
    try:
        return ScalableBloomFilter.open(path, read_only=read_only)
    except FileNotFoundError as error:
        raise FilterFileError(
            f"{path} is missing: restore it from a backup, or {_REMEDY}"
        ) from error
    except FilterFileError as error:
        raise FilterFileError(f"{error}; or {_REMEDY}") from error
