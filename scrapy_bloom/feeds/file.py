"""A feed's file: each item of the outbox is appended exactly once."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from hashlib import blake2b
from typing import IO, TYPE_CHECKING

from ..errors import FeedError
from ..files import make_directory, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class FeedFile:
    """The file at `path`, whose first `length` bytes are right.

    `prepare` cuts off later bytes if `check` has recognised all of them as this job's; nothing else
    is cut, but to begin with an empty file. FeedError is raised if another program writes to it, or
    it is a pipe or device.
    """

    def __init__(self, path: Path) -> None:
        if path.exists() and not path.is_file():  # opening a pipe may never end
            raise FeedError(f"{path} is not a regular file; choose another path")
        self.path, self.length = path, 0
        self._checked = -1  # bytes
        self._inode = 0  # of the file that was prepared
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

    def prepare(self, *, empty: bool = False) -> None:
        """Make the file if it is missing. Cut off, durably, what is behind `length` if `check` has
        seen no more, or it is to be `empty`. Raises OSError."""
        is_new = not self.path.exists()
        make_directory(self.path.parent)
        with self.path.open("ab", buffering=0) as opened:
            file = opened.fileno()
            found = os.fstat(file)
            if empty or found.st_size == self._checked:
                os.ftruncate(file, self.length)
                os.fsync(file)
            self._inode = found.st_ino
        if is_new:
            sync_directory(self.path.parent)

    def append(self, chunks: Iterator[bytes]) -> None:
        """Append all of `chunks` durably. Raises OSError or FeedError; then the file has none of
        them, and is not written to again."""
        length = self.length
        with self.path.open("ab", buffering=0) as opened:
            file = opened.fileno()
            found = os.fstat(file)
            if (found.st_size, found.st_ino) != (length, self._inode):
                what = f"{self.path} is another file, or has not {length:,} bytes"
                raise FeedError(f"{what} ({found.st_size:,}): another program writes to it")
            try:
                for data in chunks:
                    view = memoryview(data)
                    while view:
                        view = view[os.write(file, view) :]
                    self._hash.update(data)
                    length += len(data)
                os.fsync(file)
            except BaseException:
                with suppress(OSError):
                    os.ftruncate(file, self.length)
                raise
        self.length = length


def chunks(file: IO[bytes], end: int) -> Iterator[bytes]:
    """Yield the contents of `file` from its position to `end`."""
    while data := file.read(min(max(end - file.tell(), 0), 1 << 20)):
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
