"""What others have remembered of a crawl, brought into a filter.

A source yields fingerprints in batches, with how far it has got. Adding is idempotent:
an import that was interrupted is run again.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from scrapy import Request
from scrapy.utils.request import RequestFingerprinterProtocol

from ..bloom.growing import ScalableBloomFilter
from ..bloom.place import AnyFilter
from ..bloom.removal import remove_filter
from ..errors import JobDirectoryError
from ..files import sync_directory
from ..fingerprints.fast import fingerprint_of_url, is_default
from .seen_file import SeenFile, is_seen_file

Batch = tuple[list[bytes], int]
"""Fingerprints, and how much of the source's `size` is done with them."""

_BATCH_BYTES = 1 << 20
_GZIP = b"\x1f\x8b"


class Source(Protocol):
    """Where fingerprints come from. `size` is its size in `unit`, `keys` at least
    the number of fingerprints, 0 if unknown; `skipped` counts what was none, and
    `first_skipped` says what and why."""

    name: str
    size: int
    unit: str
    noun: str
    keys: int
    skipped: int
    first_skipped: str

    def batches(self) -> Iterator[Batch]:
        """Yield all fingerprints, once."""


@dataclass
class Imported:
    """How many fingerprints were new to the filter, and how many it knew."""

    added: int = 0
    known: int = 0


class UrlFile:
    """URLs, one a line, plain or gzip, as the GET requests they would be made into."""

    unit = "B"
    noun = "line"

    def __init__(self, path: Path, fingerprinter: RequestFingerprinterProtocol) -> None:
        self.name = str(path)
        self.path = path
        self.size = path.stat().st_size
        self.skipped = 0
        self.first_skipped = ""
        self._fingerprinter = fingerprinter
        self.keys = _count_lines(path)

    def batches(self) -> Iterator[Batch]:
        """Yield the fingerprints of the lines that are URLs; empty ones are left out."""
        number = 0
        with open_lines(self.path) as file:
            on_disk = getattr(file, "fileobj", file)
            while lines := file.readlines(_BATCH_BYTES):
                yield list(self._fingerprints(lines, number)), on_disk.tell()
                number += len(lines)

    def _fingerprints(self, lines: list[bytes], number: int) -> Iterator[bytes]:
        # a URL that needs no encoding is what Request makes of it
        quick = fingerprint_of_url if is_default(self._fingerprinter) else lambda _: None
        for line in lines:
            number += 1
            try:
                url = line.decode().strip()
                if url:
                    yield quick(url) or self._fingerprinter.fingerprint(Request(url))
            except Exception as error:  # noqa: BLE001 - foreign fingerprinters, w3lib
                self.skipped += 1
                self.first_skipped = self.first_skipped or (
                    f"line {number:,}, {line[:100].rstrip()!r}: {error}"
                )


def source(path: Path, fingerprinter: RequestFingerprinterProtocol) -> Source:
    """Return the source in the file at `path`: fingerprints or URLs, by its content."""
    if not path.is_file():
        raise JobDirectoryError(
            f"{path} is not a file: give a list of URLs, a requests.seen, or a Redis URL"
        )
    return SeenFile(path) if is_seen_file(path) else UrlFile(path, fingerprinter)


def import_into(
    bloom_filter: AnyFilter, source: Source, show: Callable[[int], None] = lambda _: None
) -> Imported:
    """Add what `source` has; call `show` with what is done of its size. Cost: 3 µs a
    fingerprint, and 1 to 30 µs a URL."""
    imported = Imported()
    for fingerprints, done in source.batches():
        known = sum(map(bloom_filter.add, fingerprints))
        imported.known += known
        imported.added += len(fingerprints) - known
        show(done)
    return imported


def has_only_seen(job: Path) -> bool:
    """Return True for a job that has run with RFPDupeFilter so far."""
    return (job / "requests.seen").exists() and not (job / "bloom" / "0.bloom").exists()


def import_job(
    job: Path, unclean: str | None, capacity: int, error_rate: float, identity: str
) -> str:
    """Make the filter of `job`, which has none, from its `requests.seen`, all of it or
    nothing; return a line about it. `capacity` is raised to what is imported.

    Raises JobDirectoryError if `unclean` says why the job was not stopped cleanly,
    FilterLockedError if another process is at it, what making a filter raises.
    """
    path = job / "requests.seen"
    if unclean is not None:
        raise JobDirectoryError(
            f"{job} holds a requests.seen of Scrapy's RFPDupeFilter and no Bloom filter, and the"
            f" job was not stopped cleanly ({unclean}): requests.seen also holds what was pending"
            " then, which Scrapy has lost and which would never be fetched. Use a new JOBDIR, or"
            f" import it all the same: scrapy bloom add {job} {path}"
        )
    seen = SeenFile(path)
    unfinished = job / "bloom.importing"
    for leftover in (unfinished, job / "bloom"):
        if leftover.is_dir():
            remove_filter(leftover)
    with ScalableBloomFilter(
        max(capacity, seen.keys), error_rate, unfinished, identity=identity
    ) as bloom_filter:
        imported = import_into(bloom_filter, seen)
    unfinished.rename(job / "bloom")
    sync_directory(job)
    torn = f" ({seen.skipped:,} torn records were left out)" if seen.skipped else ""
    return (
        f"Imported {imported.added:,} requests from {seen.name}{torn}: the job goes on with the"
        f" filter in {job / 'bloom'}"
    )


def _count_lines(path: Path) -> int:
    count, last = 0, b"\n"
    with open_lines(path) as file:
        while chunk := file.read(_BATCH_BYTES):
            count += chunk.count(b"\n")
            last = chunk[-1:]
    return count + (last != b"\n")


def open_lines(path: Path) -> IO[bytes]:
    """Open a file that may be compressed (gzip)."""
    with path.open("rb") as file:
        compressed = file.read(2) == _GZIP
    return gzip.open(path) if compressed else path.open("rb")  # type: ignore[return-value]
