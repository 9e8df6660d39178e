"""The `requests.seen` of Scrapy's RFPDupeFilter, in both its formats.

Up to Scrapy 2.18 it is text, a fingerprint a line in hexadecimal digits; from 2.19 on
binary, each fingerprint behind its length in two bytes, big-endian. A job that was
started before and resumed after that upgrade has both, one after the other.

An unclean stop can tear the last record, and the next run writes right behind it. All
records have one length in practice, so the torn one is found, and reading goes on
with the next.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from mmap import ACCESS_READ, mmap
from pathlib import Path

from ..errors import JobDirectoryError

_LENGTH_BYTES = 2
_LONGEST = 64  # SHA-512
_BATCH = 20_000
_is_hexadecimal = re.compile(rb"(?:[0-9a-f]{2})+").fullmatch


def is_seen_file(path: Path) -> bool:
    """Return True if the first line or record of the file at `path` is a fingerprint, or the file
    is empty."""
    with path.open("rb") as file:
        start = file.read(1000)
    if not start:
        return True
    if start[0] == 0:  # a length under 256
        return start[1:2] > b"\0"
    return _is_hexadecimal(start.partition(b"\n")[0].rstrip()) is not None


class SeenFile:
    """The fingerprints in a `requests.seen`, read once by `batches`.

    `keys` is an upper bound of their number; `skipped` counts the damaged records, and
    `first_skipped` says where the first one is. Raises JobDirectoryError if the file
    is something else.
    """

    unit = "B"
    noun = "record"

    def __init__(self, path: Path) -> None:
        if not is_seen_file(path):
            raise JobDirectoryError(
                f"{path} is no requests.seen of Scrapy: it begins neither with a fingerprint in"
                " hexadecimal digits nor with the length of one; move it away"
            )
        self.name = str(path)
        self.path = path
        self.size = path.stat().st_size
        self.skipped = 0
        self.first_skipped = ""
        with path.open("rb") as file:
            start = file.read(1000)
        self._binary = start[:1] == b"\0"
        if self._binary:
            self._length = int.from_bytes(start[:_LENGTH_BYTES], "big")
        else:
            self._length = len(start.partition(b"\n")[0].rstrip()) // 2
        self.keys = self._count()

    def batches(self) -> Iterator[tuple[list[bytes], int]]:
        """Yield fingerprints, and how many bytes of the file are done with them.
        Cost: 0.3 µs a fingerprint."""
        if not self.size:
            return
        with self.path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            position = 0
            if not self._binary:
                for fingerprints, position in self._text_batches(data):
                    yield fingerprints, position
            yield from self._binary_batches(data, position)

    def _count(self) -> int:
        """Return how many records of the usual length fit into the file."""
        text = 0
        if not self._binary and self.size:
            with self.path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
                text = data.find(b"\0") if data.find(b"\0") >= 0 else self.size
        line, record = 2 * self._length + 1, _LENGTH_BYTES + self._length
        return -(-text // line) + -(-(self.size - text) // record)

    def _text_batches(self, data: mmap) -> Iterator[tuple[list[bytes], int]]:
        """Read lines up to the first zero byte, where the binary format begins."""
        digits = 2 * self._length
        found: list[bytes] = []
        while line := data.readline():
            text = line.rstrip()
            if len(text) == digits and _is_hexadecimal(text):
                found.append(bytes.fromhex(text.decode()))
                if len(found) == _BATCH:
                    yield found, data.tell()
                    found = []
                continue
            start = data.tell() - len(line)
            text, zero, _ = line.partition(b"\0")
            if text:
                self._skip(start)
                # what was torn has the next record on its line
                if len(text.rstrip()) > digits and _is_hexadecimal(text.rstrip()[-digits:]):
                    found.append(bytes.fromhex(text.rstrip()[-digits:].decode()))
            if zero:
                yield found, start + len(text)
                return
        yield found, data.tell()

    def _binary_batches(self, data: mmap, position: int) -> Iterator[tuple[list[bytes], int]]:
        record = _LENGTH_BYTES + self._length
        size = len(data)
        high, low = header = self._length.to_bytes(_LENGTH_BYTES, "big")
        checked = False
        while position < size:
            batch = data[position : position + record * _BATCH]
            whole = len(batch) // record
            if (
                whole
                and batch[: whole * record : record].count(high) == whole
                and batch[1 : whole * record : record].count(low) == whole
                and self._goes_on(data, position + whole * record, header)
            ):
                ends = range(record, whole * record + 1, record)
                yield [batch[end - self._length : end] for end in ends], position + ends[-1]
                position += ends[-1]
            elif not checked and _is_aligned(data, position):
                yield list(_any_length(data, position)), size
                return
            else:
                checked = True
                found, position = self._past_damage(data, position, header)
                yield found, position

    def _past_damage(self, data: mmap, position: int, header: bytes) -> tuple[list[bytes], int]:
        """Return the whole records before the next damaged one, and where the first
        whole one after it begins."""
        record = _LENGTH_BYTES + self._length
        found = []
        while self._is_record(data, position, header):
            found.append(data[position + _LENGTH_BYTES : position + record])
            position += record
        if position == len(data):
            return found, position
        self._skip(position)
        start, following = position, data.find(header, position + 1)
        while following >= 0 and not self._is_record(data, following, header):
            following = data.find(header, following + 1)
        following = following if following >= 0 else len(data)
        if data[start : start + _LENGTH_BYTES] == header and start + record <= following:
            # whole; it was the header behind it that was torn
            found.append(data[start + _LENGTH_BYTES : start + record])
        return found, following

    def _is_record(self, data: mmap, position: int, header: bytes) -> bool:
        end = position + _LENGTH_BYTES + self._length
        return (
            end <= len(data)
            and data[position : position + _LENGTH_BYTES] == header
            and self._goes_on(data, end, header)
        )

    def _goes_on(self, data: mmap, position: int, header: bytes) -> bool:
        """Return True if another record begins there, torn or not, or the file ends."""
        return header.startswith(data[position : position + _LENGTH_BYTES])

    def _skip(self, position: int) -> None:
        self.skipped += 1
        self.first_skipped = self.first_skipped or f"byte {position:,}: a torn record"


def _is_aligned(data: mmap, position: int) -> bool:
    """Return True if records of any length, from there on, fill the file exactly.
    Lengths out of the middle of a record are random, and nearly all too large."""
    while position + _LENGTH_BYTES <= len(data):
        length = int.from_bytes(data[position : position + _LENGTH_BYTES], "big")
        if not 0 < length <= _LONGEST:
            return False
        position += _LENGTH_BYTES + length
    return position == len(data)


def _any_length(data: mmap, position: int) -> Iterator[bytes]:
    while position < len(data):
        start = position + _LENGTH_BYTES
        position = start + int.from_bytes(data[position:start], "big")
        yield data[start:position]
