"""The bits of one filter, in memory or in a mapped file.

A file consists of the header page, the state page and the bits, one block of the
filter a page, all little-endian.

The bits only ever go from 0 to 1, so a page that reaches the disk late or in part
costs keys, never the file. SIGKILL costs nothing: stored bits are in the page cache.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bitarray import bitarray

from ..errors import FilterFileError, FilterLockedError
from ..files import allocate, lock, open_regular, publish, require_file_locks, unlock
from .header import PAGE, REMEDY, Header, State
from .sizing import BLOCK_BITS


class BitStore:
    """The bit array of one filter, with its header and its changing state.

    `bits` is a little-endian bitarray over the memory or the mapped file. `count`
    and `expected_false_positives` reach the file with `flush` and `close`. `clean`
    tells whether an opened file had been closed; a new one is clean.
    """

    def __init__(
        self,
        header: Header,
        memory: mmap.mmap,
        offset: int,
        file: IO[bytes] | None,
        path: Path | None,
    ) -> None:
        self.header = header
        self.path = path
        self.count = 0
        self.expected_false_positives = 0.0
        self.clean = True
        self._memory = memory
        self._file = file
        self._read_only = False
        self._view = memoryview(memory)[offset:]
        self.bits = bitarray(buffer=self._view, endian="little")

    @classmethod
    def in_memory(cls, header: Header) -> BitStore:
        """Return an empty store that takes `header.bits / 8` bytes of memory once
        all its pages were touched. Raises MemoryError if they cannot be had."""
        size = header.blocks * PAGE
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
        return cls(header, memory, 0, None, None)

    @classmethod
    def create(cls, header: Header, path: Path) -> BitStore:
        """Make a new file, locked by this object, and return its empty store.

        The file is allocated in full and synced under a temporary name before it
        gets its own, so whatever happens it is either there, whole, or not there.
        Raises FileExistsError if there is something at `path`, OSError if the disk
        is too small.
        """
        require_file_locks(path)
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
            store = cls(header, mmap.mmap(descriptor, header.file_bytes), 2 * PAGE, file, path)
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

        With `read_only`, neither lock nor change it: somebody else may have it open,
        and the bits are then what he has set so far.

        Cost: reads two pages, syncs one. Raises FileNotFoundError,
        FilterLockedError if somebody has it open, FilterFileError if it is not a
        sound filter file; the file is left as it was.
        """
        require_file_locks(path)
        file = open_regular(path, read_only=read_only)
        try:
            if not read_only:
                _lock(file, path)
            header = _read_header(file, path)
            state = State.from_page(os.pread(file.fileno(), PAGE, PAGE))
            access = mmap.ACCESS_READ if read_only else mmap.ACCESS_WRITE
            memory = mmap.mmap(file.fileno(), header.file_bytes, access=access)
            store = cls(header, memory, 2 * PAGE, file, path)
        except BaseException:
            file.close()
            raise
        store.count = state.count
        store.expected_false_positives = state.expected_false_positives
        store.clean = state.clean
        store._read_only = read_only
        if not read_only:
            store._write_state(clean=False)
        return store

    def read_blocks(self, first: int, count: int) -> bytes:
        """Return `count` blocks, from block `first` on, as they stand in the file."""
        return bytes(self._view[first * PAGE : (first + count) * PAGE])

    def join_blocks(self, first: int, blocks: bytes) -> None:
        """Set the bits that are set in `blocks`, from block `first` on."""
        start = first * BLOCK_BITS
        added = bitarray(endian="little")
        added.frombytes(blocks)
        self.bits[start : start + len(added)] |= added

    def block_counts(self) -> Iterator[int]:
        """Yield the number of set bits in each block. Reads everything."""
        bits = self.bits
        for start in range(0, self.header.bits, BLOCK_BITS):
            yield bits.count(1, start, start + BLOCK_BITS)

    def flush(self) -> None:
        """Sync bits and state to the disk. Cost: 10 to 100 ms for 1,000 to 10,000
        pages changed since the last one."""
        if self._file is not None and not self._read_only:
            self._memory.flush()
            self._write_state(clean=False)

    def close(self) -> None:
        """Sync, mark as cleanly closed and unlock. `bits` is gone afterwards."""
        if self._memory.closed:
            return
        try:
            if self._file is not None and not self._read_only:
                self._memory.flush()
                self._write_state(clean=True)
        finally:
            # bitarray, view, map: mmap refuses to close under either of the others. After
            # Ctrl-C a traceback may have the bits; the map then goes when that goes.
            del self.bits
            with contextlib.suppress(BufferError):
                self._view.release()
                self._memory.close()
            if self._file is not None:
                unlock(self._file)

    def check(self) -> None:
        """Raise FilterFileError unless the file still is what the header says."""
        if self._file is None or self.path is None:
            return
        if _read_header(self._file, self.path) != self.header:
            raise FilterFileError(f"{self.path} has another header than when it was opened")

    def _write_state(self, *, clean: bool) -> None:
        pid = 0 if clean else os.getpid()
        state = State(self.count, self.expected_false_positives, clean, pid)
        self._memory[PAGE : 2 * PAGE] = state.to_page()
        self._memory.flush(PAGE, PAGE)


def read_header(path: Path) -> Header:
    """Return the header of the file at `path` without locking or changing it.

    Raises FileNotFoundError, or FilterFileError if it is not a sound filter file.
    """
    require_file_locks(path)
    with open_regular(path, read_only=True) as file:
        return _read_header(file, path)


def read_state(path: Path) -> State:
    """Return the state in the file at `path`, as `read_header` does the header."""
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
