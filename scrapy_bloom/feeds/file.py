"""A file that holds what the outbox has given it, each byte once."""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import FeedError
from ..files import make_directory, sync_directory

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

AT_ONCE = 1 << 20
"""Bytes in memory at a time."""
PAGE = 4096


class FeedFile:
    """The file at `path`, of which the first `length` bytes are as they should be.

    What comes after them when it is opened is cut off if `check` has found it to be our
    own, or if it is to be emptied. Nothing else is ever cut or written over: a file that
    others write to raises FeedError.
    """

    def __init__(self, path: Path, *, emptied: bool = False) -> None:
        self.path = path
        self.length = 0
        self._may_cut = emptied
        self._foot = b""
        self._hash = _hash()
        self._file = -1

    @property
    def digest(self) -> bytes:
        """A hash of the first `length` bytes."""
        return self._hash.digest()

    def keep(self) -> None:
        """Take all that is in the file now as it should be. Cost: reads it."""
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            while data := file.read(AT_ONCE):
                self._hash.update(data)
                self.length += len(data)

    def check(self, length: int, digest: bytes, endings: Iterable[Iterator[bytes]]) -> None:
        """Take the first `length` bytes as they should be if their hash is `digest` and
        what follows is the beginning of one of `endings`, in chunks; else raise
        FeedError. Cost: reads the file; changes nothing."""
        try:
            file = self.path.open("rb")
        except FileNotFoundError:
            if length:
                raise FeedError(f"{self.path} is not there any more") from None
            return
        with file:
            while left := length - self.length:
                data = file.read(min(left, AT_ONCE))
                if not data:
                    raise FeedError(
                        f"{self.path} has {self.length:,} bytes, and had {length:,} at least"
                    )
                self._hash.update(data)
                self.length += len(data)
            if length and self.digest != digest:
                raise FeedError(f"the first {length:,} bytes of {self.path} are others now")
            for ending in endings:
                file.seek(length)
                if _is_beginning(file.fileno(), length, ending):
                    self._may_cut = True
                    return
            size = os.fstat(file.fileno()).st_size
            raise FeedError(
                f"the last {size - length:,} bytes of {self.path} are not from this job"
            )

    def open(self) -> None:
        """Open the file, make it and its directory if they are not there, and cut off
        what comes after `length`. Raises OSError."""
        if self._file != -1:
            return
        is_new = not self.path.exists()
        make_directory(self.path.parent)
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        file = os.open(self.path, flags, 0o666)
        try:
            if self._may_cut or self._has_foot(file):
                os.ftruncate(file, self.length)
            self._require_length(file)
            if is_new:
                sync_directory(self.path.parent)
        except BaseException:
            os.close(file)
            raise
        self._file = file
        self._may_cut = False

    def append(self, chunks: Iterable[bytes]) -> None:
        """Append all of `chunks` and make them durable, or, if that raises OSError or
        FeedError, none."""
        self.open()
        self._require_length(self._file)
        after, length = self._hash.copy(), self.length
        try:
            for data in _joined(chunks):
                _write(self._file, data)
                after.update(data)
                length += len(data)
            os.fsync(self._file)
        except BaseException:
            with suppress(OSError):
                os.ftruncate(self._file, self.length)
            raise
        self._hash, self.length = after, length

    def finish(self, foot: bytes) -> None:
        """Write the foot, which is not counted: it goes when the file is opened again.
        Raises OSError, FeedError."""
        self.open()
        self._require_length(self._file)
        self._foot = foot
        _write(self._file, foot)
        os.fsync(self._file)
        self.close()

    def _has_foot(self, file: int) -> bool:
        tail = os.pread(file, len(self._foot) + 1, self.length)
        return bool(tail) and self._foot.startswith(tail)

    def _require_length(self, file: int) -> None:
        if (size := os.fstat(file).st_size) != self.length:
            raise FeedError(
                f"{self.path} has {size:,} bytes, and this job has left it with"
                f" {self.length:,}: somebody else writes to it"
            )

    def close(self) -> None:
        """Close the file. Does nothing if it is not open."""
        if self._file != -1:
            os.close(self._file)
            self._file = -1


def _hash() -> blake2b:
    return blake2b(digest_size=16, usedforsecurity=False)


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]


def _joined(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield `chunks` in portions of AT_ONCE or so."""
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
    """Return True if the file, from `offset` on, is the beginning of `chunks`.

    Pages of zeros are taken for what a power cut has left of a write."""
    for expected in _joined(chunks):
        found = os.pread(file, len(expected), offset)
        if not _agree(found, expected, offset):
            return False
        if len(found) < len(expected):
            return True
        offset += len(expected)
    return not os.pread(file, 1, offset)


def _agree(found: bytes, expected: bytes, offset: int) -> bool:
    if expected.startswith(found):
        return True
    start = 0
    while start < len(found):
        end = start + PAGE - (offset + start) % PAGE
        page = found[start:end]
        if any(page) and page != expected[start : start + len(page)]:
            return False
        start = end
    return True
