"""The bits of one filter, and its exact table if it has one, in memory or in a mapped file.

A file consists of the header page, the state page, the bits (a block of the filter in each page)
and the pages of the table, all little-endian.

Bits change from 0 to 1 only, so a page that reaches the disk late or in part costs keys, never
the file. SIGKILL costs nothing: stored bits are in the page cache.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, NoReturn
from weakref import WeakSet

from bitarray import bitarray

from ..errors import BloomError, FilterFileError, FilterLockedError
from ..files import allocate, lock, open_regular, publish, unlock
from . import sizing
from .header import OWNER_AT, PAGE, REMEDY, Header, State
from .sizing import BLOCK_BITS, LayerLoad, digests, table_limit


class BitStore:
    """The bit array of one filter, with its header and its changing state.

    `bits` is a little-endian bitarray over the memory or the mapped file, `table` the exact table
    behind the bits, or None. `flush` and `close` write `count` to the file. `clean` is False if an
    opened file had not been closed, so that its keys were recounted; `found` is its state page as
    it was then.

    A file belongs to the process that opened it. A forked process may read it and sees additions;
    it neither changes the file nor keeps it locked.
    """

    def __init__(
        self,
        header: Header,
        memory: mmap.mmap,
        offset: int = 0,
        path: Path | None = None,
        lock: IO[bytes] | None = None,
    ) -> None:
        self.header = header
        self.blocks = header.blocks
        self.probes = header.probes
        self.capacity = header.capacity
        self.seeds = tuple(range(1, digests(header.probes)))
        self.path = path
        self.count = 0
        self.clean = True
        self.found = self.ends_as = b""
        self._memory = memory
        self._lock = lock
        end = offset + header.blocks * PAGE
        self._view = memoryview(memory)[offset:end]
        self.bits = bitarray(buffer=self._view, endian="little")
        self.table = None
        if header.table_pages:
            from .exact_table import ExactTable

            self.table = ExactTable(memory, end, header.table_pages, header.secret)
        if lock is not None:
            _owned.add(self)
        elif path is not None:
            self._forbid_writing()

    @classmethod
    def in_memory(cls, header: Header) -> BitStore:
        """Return an empty store. Memory: its blocks and its table, once all pages were touched.
        Raises MemoryError if that is not available."""
        size = (header.blocks + header.table_pages) * PAGE
        try:
            if hasattr(mmap, "MAP_PRIVATE"):
                memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            else:
                memory = mmap.mmap(-1, size)
        except (OSError, OverflowError) as error:
            raise MemoryError(
                f"capacity {header.capacity:,} at error rate {header.error_rate:g} needs {size:,}"
                f" bytes of memory, which cannot be had ({error}); set a smaller capacity"
            ) from error
        return cls(header, memory)

    @classmethod
    def create(cls, header: Header, path: Path) -> BitStore:
        """Make a new file, locked by this object, and return its empty store.

        The file is allocated in full and synced under a temporary name, then renamed, so after a
        crash it is complete or absent. Raises FileExistsError if `path` exists, OSError if the
        disk is too small.
        """
        page = header.to_page()
        descriptor, temporary = tempfile.mkstemp(f".{path.name}.tmp", "", path.parent)
        file = os.fdopen(descriptor, "r+b", buffering=0)
        try:
            _lock(file, path)
            try:
                allocate(file, header.file_bytes)
            except (OSError, OverflowError) as error:
                raise OSError(
                    getattr(error, "errno", None) or errno.EFBIG,
                    f"cannot allocate {header.file_bytes:,} bytes for a filter of capacity"
                    f" {header.capacity:,} ({error}); free some space or set a smaller capacity",
                    str(path),
                ) from error
            os.pwrite(descriptor, page, 0)
            os.pwrite(descriptor, State(pid=os.getpid()).to_page(), PAGE)
            os.fsync(descriptor)
            with open_regular(Path(temporary)) as mapped:
                memory = mmap.mmap(mapped.fileno(), header.file_bytes)
            store = cls(header, memory, 2 * PAGE, path, file)
            publish(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            file.close()
            raise
        return store

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> BitStore:
        """Map the file at `path`, lock it and mark it as not cleanly closed.

        With `read_only`, neither lock nor change it: another process may have it open and may go
        on setting bits.

        Cost: reads two pages, syncs one. Raises FileNotFoundError, FilterLockedError if another
        process has it open, FilterFileError if it is not a sound filter file. An error leaves the
        file unchanged.
        """
        locked = None if read_only else open_regular(path)
        try:
            if locked is not None:
                _lock(locked, path)
            # The map keeps this descriptor open in forked processes too. The lock belongs to the
            # other descriptor, which they close.
            with open_regular(path, read_only=read_only) as file:
                if locked is not None and not os.path.sameopenfile(locked.fileno(), file.fileno()):
                    raise FilterLockedError(
                        f"{path} was replaced while it was opened: another process uses it; wait"
                        " until that has finished"
                    )
                header = _read_header(file, path)
                state = State.from_page(page := os.pread(file.fileno(), PAGE, PAGE))
                access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
                memory = mmap.mmap(file.fileno(), header.file_bytes, access=access)
            store = cls(header, memory, 2 * PAGE, path, locked)
            store.count, store.clean, store.found = state.keys, state.clean, page
            if not read_only:
                store._write_state(clean=False)
            if not state.clean:
                store.count = store.recount()
        except BaseException:
            if locked is not None:
                locked.close()
            raise
        return store

    @property
    def writable(self) -> bool:
        """False if the file was opened with `read_only`, or before this process was forked."""
        return self.path is None or (self._lock is not None and not self._lock.closed)

    @property
    def load(self) -> LayerLoad:
        """Shape and number of keys, for the sums over the layers of a growing filter."""
        return LayerLoad(self.blocks, self.probes, self.count, table_pages=self.header.table_pages)

    def recount(self) -> int:
        """Return the number of keys, exact with a table, else estimated from the bits. Cost: reads
        the whole filter."""
        if self.table is not None:
            return sum(self.table.counts())
        return sizing.estimate_keys(self.probes, self.block_counts())

    def require_room(self, *, is_bound: bool) -> None:
        """Raise BloomError if the exact table is full, or, if the error rate `is_bound`, where that
        is reached, at a cost of 0.1 ms."""
        is_full = self.table is not None and self.count >= table_limit(self.table.pages)
        if is_full or (is_bound and self.load.error_rate >= self.header.error_rate):
            raise BloomError(
                f"{self.path or 'this filter'} holds {self.count:,} keys, all that a filter for"
                f" {self.capacity:,} takes: let it grow (ScalableBloomFilter, BLOOM_ON_FULL ="
                " 'grow'), or make one with a larger capacity"
            )

    def block_counts(self) -> Iterator[int]:
        """Yield the number of set bits in each block. Cost: reads all blocks."""
        bits = self.bits
        for start in range(0, len(bits), BLOCK_BITS):
            yield bits.count(1, start, start + BLOCK_BITS)

    def flush(self) -> None:
        """Sync bits and state to the disk. Cost: 10 to 100 ms for 1,000 to 10,000 changed pages."""
        if self.path is not None and self.writable:
            self._memory.flush()
            self._write_state(clean=False)

    def close(self) -> None:
        """Sync, mark as cleanly closed or as what it `ends_as`, unlock; a second call does nothing.

        `bits` is unusable afterwards, also if the disk fails; then the file counts as not closed.
        """
        _owned.discard(self)
        try:
            if self.path is not None and self.writable:
                self._memory.flush()
                self._write_state(clean=True)
        finally:
            # In this order, since mmap refuses to close under a view. After Ctrl-C a traceback may
            # reference the bits; then the map is freed with the traceback.
            self.bits = _ClosedBits()
            with contextlib.suppress(BufferError):
                self._view.release()
                self._memory.close()
            if self._lock is not None:
                unlock(self._lock)

    def check(self) -> None:
        """Raise FilterFileError unless the file has its size, and its header at the opening."""
        if self.path is not None and read_header(self.path) != self.header:
            raise FilterFileError(f"{self.path} has another header than when it was opened")

    def _forbid_writing(self) -> None:
        self.bits = _ReadOnlyBits(buffer=self._view.toreadonly(), endian="little")

    def _write_state(self, *, clean: bool) -> None:
        pid = 0 if clean else os.getpid()
        page = State(self.count, clean, pid).to_page()
        self._memory[PAGE : PAGE + OWNER_AT] = (self.ends_as or page)[:OWNER_AT]
        self._memory.flush(PAGE, PAGE)


class _ClosedBits(bitarray):
    """Stands in for the bits of a closed filter; any use raises ValueError."""

    def _refuse(self, *_: object) -> NoReturn:
        raise ValueError("this filter is closed; open it again to use it")

    __getitem__ = __setitem__ = __ior__ = _refuse


class _ReadOnlyBits(bitarray):
    """The bits of a filter that is not `writable`; a change raises TypeError."""

    def _refuse(self, *_: object) -> NoReturn:
        refuse_writing()

    __setitem__ = __ior__ = _refuse


def refuse_writing() -> NoReturn:
    """Raise the TypeError of an addition to a filter that is not `writable`."""
    raise TypeError(
        "this filter may only be read: it was opened with read_only, or before this process was"
        " forked; open it for writing where keys are added"
    )


_owned: WeakSet[BitStore] = WeakSet()
"""The stores whose files this process may change."""


def _leave_to_parent() -> None:
    for store in list(_owned):
        store._forbid_writing()
    _owned.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)


def read_header(path: Path) -> Header:
    """Return the header of the file at `path` without locking or changing the file. Raises
    FileNotFoundError, or FilterFileError if it is not a sound filter file."""
    with open_regular(path, read_only=True) as file:
        return _read_header(file, path)


def read_state(path: Path) -> State:
    """Return the state in the file at `path` without locking or changing the file."""
    with open_regular(path, read_only=True) as file:
        return State.from_page(os.pread(file.fileno(), PAGE, PAGE))


def _read_header(file: IO[bytes], path: Path) -> Header:
    header = Header.from_page(os.pread(file.fileno(), PAGE, 0), path)
    size = os.fstat(file.fileno()).st_size
    if size != header.file_bytes:
        what = "truncated" if size < header.file_bytes else "longer than it was made"
        raise FilterFileError(
            f"{path} is {what}: {size:,} bytes, and its header says {header.file_bytes:,}; {REMEDY}"
        )
    return header


def _lock(file: IO[bytes], path: Path) -> None:
    try:
        lock(file)
    except BlockingIOError:
        pid = State.from_page(os.pread(file.fileno(), PAGE, PAGE)).pid
        raise FilterLockedError(
            f"{path} is in use by process {pid or '(unknown)'}; wait until it has closed it,"
            " or use another path"
        ) from None
