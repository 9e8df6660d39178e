"""A feed's file: each item of the outbox is appended exactly once."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..atomic import privately
from ..errors import FeedError
from ..files import make_directory, sync_directory

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

AT_ONCE = 1 << 20
"""Bytes read or written at a time."""
PAGE = 4096


class FeedFile:
    """The file at `path`, whose first `length` bytes are right.

    `open` cuts off later bytes if `check` has recognised all of them as this job's, or if the file
    is to be `emptied`; nothing else is cut or overwritten. FeedError is raised if another program
    writes to it, or it is a pipe or device. A `private` file, and its directory, is for its owner.
    """

    def __init__(self, path: Path, *, emptied: bool = False, private: bool = False) -> None:
        if path.exists() and not path.is_file():  # opening a pipe may never end
            raise FeedError(f"{path} is not a regular file; choose another path")
        self.path, self._private = path, private
        self.length, self._file = 0, -1
        self._cut_sizes: Container[int] = range(sys.maxsize) if emptied else ()
        self._hash = blake2b(digest_size=16, usedforsecurity=False)

    @property
    def digest(self) -> bytes:
        """A hash of the first `length` bytes."""
        return self._hash.digest()

    def keep(self) -> None:
        """Take the present contents of the file as right. Cost: reads the file."""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            self._read(file, sys.maxsize)

    def check(self, length: int, digest: bytes, ending: Iterator[bytes]) -> None:
        """Take the first `length` bytes as right if their hash is `digest` and the rest is the
        beginning of `ending`, in chunks. Else raise FeedError, or OSError for what `open` could not
        open. Cost: reads the file."""
        try:
            file = self.path.open("r+b")
        except FileNotFoundError:
            if length:
                raise FeedError(f"{self.path} is not there any more") from None
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            self._read(file, length)
            if self.length < length:
                raise FeedError(f"{self.path} has {self.length:,} bytes, and had {length:,}")
            if length and self.digest != digest:
                raise FeedError(f"the first {length:,} bytes of {self.path} are others now")
            if not _is_beginning(file.fileno(), length, ending):
                more = os.fstat(file.fileno()).st_size - length
                raise FeedError(f"the last {more:,} bytes of {self.path} are not from this job")
        self._cut_sizes = (size,)  # others may write to it before it is opened

    def _read(self, file: IO[bytes], end: int) -> None:
        for data in chunks(file, end):
            self._hash.update(data)
            self.length += len(data)

    def open(self) -> None:
        """Open the file and cut off bytes after `length`; make it and its directory if they are
        missing. Raises OSError."""
        if self._file != -1:
            return
        is_new = not self.path.exists()
        make_directory(self.path.parent, 0o700 if self._private else 0o777)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = privately(self.path, flags) if self._private else os.open(self.path, flags, 0o666)
        try:
            if os.fstat(file).st_size in self._cut_sizes:
                os.ftruncate(file, self.length)
            if is_new:
                sync_directory(self.path.parent)
        except BaseException:
            os.close(file)
            raise
        self._file = file
        self._cut_sizes = ()

    def append(self, chunks: Iterable[bytes]) -> None:
        """Append all of `chunks` durably, or none if that raises OSError or FeedError."""
        self.open()
        if (size := os.fstat(self._file).st_size) != self.length:
            what = f"{self.path} has {size:,} bytes, not {self.length:,}"
            raise FeedError(f"{what}: another program writes to it")
        after, length = self._hash.copy(), self.length
        try:
            for data in _joined(chunks):
                view = memoryview(data)
                while view:
                    view = view[os.write(self._file, view) :]
                after.update(data)
                length += len(data)
            os.fsync(self._file)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._file, self.length)
            raise
        self._hash, self.length = after, length

    def close(self) -> None:
        """Close the file, if it is open."""
        if self._file != -1:
            os.close(self._file)
            self._file = -1


def chunks(file: IO[bytes], end: int) -> Iterator[bytes]:
    """Yield the contents of `file` from its position to `end`."""
    while data := file.read(min(max(end - file.tell(), 0), AT_ONCE)):
        yield data


def _joined(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `chunks` joined to portions of about AT_ONCE bytes."""
    portion: list[bytes] = []
    size = 0
    for chunk in chunks:
        portion.append(chunk)
        size += len(chunk)
        if size >= AT_ONCE:
            yield b"".join(portion)
            portion, size = [], 0
    yield b"".join(portion)


def _is_beginning(file: int, offset: int, chunks: Iterator[bytes]) -> bool:
    """Return True if the file, from `offset` on, is the beginning of `chunks`. Pages of zeros
    match: a power cut can leave them of a write."""
    for expected in _joined(chunks):
        found = os.pread(file, len(expected), offset)
        if not _agree(found, expected, offset):
            return False
        if len(found) < len(expected):
            return True
        offset += len(expected)
    return os.fstat(file).st_size <= offset


def _agree(found: bytes, expected: bytes, offset: int) -> bool:
    for start in range(-(offset % PAGE), len(found), PAGE):
        page = found[max(start, 0) : start + PAGE]
        if any(page) and not expected.startswith(page, max(start, 0)):
            return False
    return True
