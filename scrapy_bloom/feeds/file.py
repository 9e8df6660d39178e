"""A feed's file: each item of the outbox is appended exactly once."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager, suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ..errors import FeedError
from ..files import make_directory, privately, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator

AT_ONCE = 1 << 20
"""Bytes read at a time."""
ITEMS_AT_ONCE = 32
"""Items written at a time."""


class FeedFile:
    """The file at `path`, whose first `length` bytes are right.

    `prepare` cuts off later bytes if `check` has recognised all of them as this job's; nothing else
    is cut, but by `empty`. FeedError is raised if another program writes to it, or it is a pipe or
    device. A `private` file, and its directory, is for its owner.
    """

    def __init__(self, path: Path, *, private: bool = False) -> None:
        if path.exists() and not path.is_file():  # opening a pipe may never end
            raise FeedError(f"{path} is not a regular file; choose another path")
        self.path, self._private = path, private
        self.length, self._checked = 0, -1  # bytes
        self._inode = 0  # of the file that was prepared or emptied
        self._hash = blake2b(digest_size=16, usedforsecurity=False)

    @property
    def digest(self) -> str:
        """A hash of the first `length` bytes."""
        return self._hash.hexdigest()

    def read(self, end: int = sys.maxsize) -> None:
        """Take what the file has, up to `end`, as right. Cost: reads the file."""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            for data in chunks(file, end):
                self._hash.update(data)
                self.length += len(data)

    def check(self, length: int, digest: str, ending: Iterator[bytes]) -> None:
        """Take the first `length` bytes as right if their hash is `digest` and the rest is the
        beginning of `ending`, in chunks. Else raise FeedError, or OSError for what cannot be
        opened. Cost: reads the file."""
        self.read(length)
        is_ours = True
        with suppress(FileNotFoundError), self.path.open("r+b") as file:
            self._checked = os.fstat(file.fileno()).st_size  # others may write to it meanwhile
            is_ours = _is_beginning(file.fileno(), length, ending)
        if self.digest != digest or not is_ours:
            raise FeedError(f"{self.path} is not as this job has left it ({length:,} bytes)")

    def prepare(self) -> None:
        """Cut off bytes after `length`, if `check` has seen no more; make the file if it is
        missing. Raises OSError."""
        with self._opened() as file:
            found = os.fstat(file)
            if found.st_size == self._checked:
                os.ftruncate(file, self.length)
            self._checked, self._inode = -1, found.st_ino

    def empty(self) -> None:
        """Make the file, or drop its contents, durably. Raises OSError."""
        with self._opened() as file:
            os.ftruncate(file, 0)
            os.fsync(file)
            self._inode = os.fstat(file).st_ino

    def append(self, chunks: Iterator[bytes]) -> None:
        """Append all of `chunks` durably, or none if that raises OSError or FeedError."""
        after, length = self._hash.copy(), self.length
        with self._opened() as file:
            found = os.fstat(file)
            if (found.st_size, found.st_ino) != (length, self._inode):
                what = f"{self.path} is another file, or has not {length:,} bytes"
                raise FeedError(f"{what} ({found.st_size:,}): another program writes to it")
            try:
                while portion := [*islice(chunks, ITEMS_AT_ONCE)]:
                    view = memoryview(data := b"".join(portion))
                    while view:
                        view = view[os.write(file, view) :]
                    after.update(data)
                    length += len(data)
                os.fsync(file)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(file, self.length)
                raise
        self._hash, self.length = after, length

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Open the file; make it and its directory if they are missing. Raises OSError."""
        is_new = not self.path.exists()
        make_directory(self.path.parent, 0o700 if self._private else 0o777)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = privately(self.path, flags) if self._private else os.open(self.path, flags, 0o666)
        try:
            if is_new:
                sync_directory(self.path.parent)
            yield file
        finally:
            os.close(file)


def chunks(file: IO[bytes], end: int) -> Iterator[bytes]:
    """Yield the contents of `file` from its position to `end`."""
    while data := file.read(min(max(end - file.tell(), 0), AT_ONCE)):
        yield data


def _is_beginning(file: int, offset: int, chunks: Iterator[bytes]) -> bool:
    """Return True if the file, from `offset` on, is the beginning of `chunks`. Zeros match: a power
    cut can leave them of a write."""
    for expected in chunks:
        found = os.pread(file, len(expected), offset)
        both = zip(found, expected, strict=False)
        if not expected.startswith(found) and any(byte not in (0, wanted) for byte, wanted in both):
            return False
        if len(found) < len(expected):
            return True
        offset += len(expected)
    return os.fstat(file).st_size <= offset
