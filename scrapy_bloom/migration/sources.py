"""Sources of fingerprints, and their import into a filter, run again after an interruption."""

from __future__ import annotations

import re
import sys
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from gzip import BadGzipFile, GzipFile
from io import BufferedIOBase
from itertools import chain
from mmap import ACCESS_READ, mmap
from pathlib import Path

from scrapy import Request
from scrapy.utils.request import RequestFingerprinterProtocol

from ..bloom import GrowingFilter
from ..bloom.fixed import BloomFilter
from ..errors import BloomError, JobDirectoryError
from ..fingerprints.fast import fingerprint_of_url, is_default
from ..jobdir import JobDirectory
from ..settings import BloomSettings
from ..texts import in_brief

_LENGTH_BYTES = 2
_LONGEST = 64  # SHA-512
_BATCH = 20_000
_BATCH_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"
_is_hexadecimal = re.compile(rb"(?:[0-9a-f]{2})+").fullmatch


class Source:
    """A source of fingerprints. `size` is its number of `unit`s, `keys` at least that of its
    fingerprints; `skipped` counts each `noun` that was none, and `first_skipped` describes the
    first of these."""

    name: str
    unit: str
    noun: str
    size: int
    keys: int
    skipped = 0
    first_skipped = ""

    def batches(self) -> Iterator[tuple[list[bytes], int]]:
        """Yield all fingerprints, and how many units are done; `skipped` begins anew. Raises
        OSError or BloomError."""
        self.skipped, self.first_skipped = 0, ""
        yield from self._batches()

    def _batches(self) -> Iterator[tuple[list[bytes], int]]:
        raise NotImplementedError

    def _skip(self, what: str, count: int = 1) -> None:
        self.skipped += count
        self.first_skipped = self.first_skipped or what


def form_of_seen(path: Path) -> tuple[bool, int] | None:
    """Return whether the file at `path` begins in binary, and the length of its first fingerprint;
    None if there is none, and the file is not empty."""
    with path.open("rb") as file:
        start = file.read(1000)
    if start[:1] == b"\0":  # a length under 256
        return (True, start[1]) if start[1:2] > b"\0" else None
    line = start.partition(b"\n")[0].rstrip()
    return (False, len(line) // 2) if not start or _is_hexadecimal(line) else None


class SeenFile(Source):
    """The fingerprints in the `requests.seen` of Scrapy's RFPDupeFilter, in both its formats.

    Up to Scrapy 2.18 it is text, a fingerprint a line in hexadecimal digits; from 2.19 on binary,
    each fingerprint behind its length in two bytes, big-endian. A job that was started before and
    resumed after that upgrade has both, one after the other. An unclean stop can tear the last
    record, and the next run writes right behind it. A torn line is left out; behind a torn record
    nothing can be told apart any more, so reading ends there. Cost: 0.6 µs a fingerprint.

    `keys` is an upper bound of their number, if all are as long as the first; `skipped` counts what
    is torn and what is left out behind it, about, and `first_skipped` says where that begins.
    Raises JobDirectoryError if the file is something else.
    """

    unit = "B"
    noun = "record"

    def __init__(self, path: Path) -> None:
        form = form_of_seen(path)
        if form is None:
            raise JobDirectoryError(
                f"{path} is no requests.seen of Scrapy: it begins neither with a fingerprint in"
                " hexadecimal digits nor with the length of one; move it away"
            )
        self.name = str(path)
        self.path = path
        self.size = path.stat().st_size
        self._binary, self._length = form
        self.keys = self._count()

    def _batches(self) -> Iterator[tuple[list[bytes], int]]:
        if not self.size:
            return
        with self.path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
            found = []
            for fingerprint, position in chain(self._lines(data), self._records(data)):
                found.append(fingerprint)
                if len(found) == _BATCH:
                    yield found, position
                    found = []
            yield found, self.size

    def _count(self) -> int:
        """Return how many records of the usual length fit into the file."""
        text = 0
        if not self._binary and self.size:
            with self.path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as data:
                zero = data.find(b"\0")
            text = self.size if zero == -1 else zero
        line, record = 2 * self._length + 1, _LENGTH_BYTES + self._length
        return -(-text // line) + -(-(self.size - text) // record)

    def _lines(self, data: mmap) -> Iterator[tuple[bytes, int]]:
        """Read lines up to the first zero byte, where the binary format begins."""
        digits = 2 * self._length
        while not self._binary and (line := data.readline()):
            text, zero, _ = line.partition(b"\0")
            end = data.tell() - len(line) + len(text)
            # what was torn has the next record on its line
            whole = text.rstrip()[-digits:]
            if len(whole) == digits and _is_hexadecimal(whole):
                yield bytes.fromhex(whole.decode()), end
            if text.rstrip() and (text.rstrip() != whole or len(whole) < digits):
                self._skip(_torn(end - len(text)))
            if zero:
                data.seek(end)
                return

    def _records(self, data: mmap) -> Iterator[tuple[bytes, int]]:
        position = data.tell()
        while position < self.size:
            start = position + _LENGTH_BYTES
            end = start + (length := int.from_bytes(data[position:start], "big"))
            if not 0 < length <= _LONGEST or end > self.size:
                left = self.size - position
                self._skip(_torn(position), -(-left // (_LENGTH_BYTES + self._length)))
                return
            yield data[start:end], end
            position = end


def _torn(position: int) -> str:
    return f"byte {position:,}: a torn record"


class UrlList(Source):
    """The URLs in the file at `path`, one a line, plain or gzip, as GET requests. Empty lines are
    not counted as skipped. Raises BloomError if there is no URL in it, or if it is damaged."""

    unit = "line"
    noun = "line"

    def __init__(self, path: Path, fingerprinter: RequestFingerprinterProtocol) -> None:
        self.name = str(path)
        self._path = path
        self._fingerprinter = fingerprinter
        with open_list(path) as file:
            self.size = self.keys = sum(1 for _ in file)
        if not any(fingerprints for fingerprints, _ in self.batches()):
            what = self.first_skipped or (
                "there are empty lines only" if self.size else "it is empty"
            )
            raise BloomError(
                f"{path} holds no URL ({what}): give a list of URLs, one a line, or a requests.seen"
            )

    def _batches(self) -> Iterator[tuple[list[bytes], int]]:
        done = 0
        with open_list(self._path) as file:
            while lines := file.readlines(_BATCH_BYTES):
                fingerprints = list(self._fingerprints(lines, done))
                done += len(lines)
                yield fingerprints, done

    def _fingerprints(self, lines: list[bytes], number: int) -> Iterator[bytes]:
        # a URL that needs no encoding is what Request makes of it
        quick = fingerprint_of_url if is_default(self._fingerprinter) else lambda _: None
        for line in lines:
            number += 1
            try:
                if url := url_in(line):
                    yield quick(url) or self._fingerprinter.fingerprint(Request(url))
            except Exception as error:  # noqa: BLE001 - foreign fingerprinters, w3lib
                shown = in_brief(repr(line.rstrip()))
                self._skip(f"line {number:,}, {shown}: {in_brief(str(error))}")


@contextmanager
def open_list(path: Path | None) -> Iterator[BufferedIOBase]:
    """Open a list that may be compressed, without a path the standard input, for the length
    of a context. Raises OSError, and BloomError when what is read is damaged."""
    if path is None and sys.stdin is None:
        raise BloomError("there is no standard input to read a list from")
    with path.open("rb") if path else open(sys.stdin.fileno(), "rb", closefd=False) as file:
        try:
            # not read and put back: what comes out of a pipe comes once
            yield GzipFile(fileobj=file) if file.peek(2)[:2] == _GZIP else file
        except (EOFError, BadGzipFile, zlib.error) as error:
            raise BloomError(
                f"{path or 'standard input'} is no whole gzip file ({error}): get or make it again"
            ) from None


def url_in(line: bytes, errors: str = "strict") -> str:
    """Return the URL in a line of a list, without the white space around it and without
    the byte order mark that some editors put at the start of a file."""
    return line.removeprefix(BOM_UTF8).decode(errors=errors).strip()


@dataclass(frozen=True)
class Imported:
    """The numbers of fingerprints that were new to the filter, and that it knew, and what the
    source has skipped."""

    added: int
    known: int
    skipped: int
    first_skipped: str | None


def source_in(path: Path, fingerprinter: RequestFingerprinterProtocol) -> Source:
    """Return the source in the file at `path`: fingerprints or URLs, by its content; of an
    empty one its name must say that it is a requests.seen. Raises OSError or BloomError."""
    if not path.is_file():
        raise JobDirectoryError(
            f"{path} is not a file: give a list of URLs, a requests.seen, or a Redis URL"
        )
    is_named_so = path == JobDirectory(path.parent).seen_file
    fingerprints = form_of_seen(path) is not None if path.stat().st_size else is_named_so
    return SeenFile(path) if fingerprints else UrlList(path, fingerprinter)


def require_imported(job: JobDirectory, files: Sequence[Path], remedy: str) -> None:
    """Raise JobDirectoryError, with the `remedy`, where a filter of `job`, which has none, would
    keep its own requests.seen from being imported: that is none of `files`."""
    is_needed = job.has_only_seen_file and job.seen_file.stat().st_size
    if is_needed and not any(path.samefile(job.seen_file) for path in files):
        raise JobDirectoryError(
            f"{job.path} holds a requests.seen, which a crawl imports only while there is no"
            f" filter: {remedy}"
        )


def make_filter(
    job: JobDirectory, sources: Sequence[Source], settings: BloomSettings, identity: str
) -> GrowingFilter:
    """Make the filter of `job`, which has none, with room for all of `sources`. Raises what
    `require_imported` and making a filter raise."""
    files = [source.path for source in sources if isinstance(source, SeenFile)]
    add = f"scrapy bloom add {job.path} {job.seen_file} …"
    require_imported(job, files, f"import it as well ({add})")
    job.path.mkdir(parents=True, exist_ok=True)
    with job.locked():
        return settings.open_filter(job.filter, identity, sum(each.keys for each in sources))


def import_into(
    bloom_filter: BloomFilter | GrowingFilter,
    source: Source,
    show: Callable[[int], None] = lambda _: None,
) -> Imported:
    """Import all that `source` has; call `show` with how many of its units are done. Cost:
    3 µs a fingerprint, and 1 to 30 µs a URL."""
    added = known = 0
    for fingerprints, done in source.batches():
        old = sum(map(bloom_filter.add, fingerprints))
        known += old
        added += len(fingerprints) - old
        show(done)
    return Imported(added, known, source.skipped, source.first_skipped or None)
