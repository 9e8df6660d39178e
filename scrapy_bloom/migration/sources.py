"""Sources of fingerprints, and their import into a filter, run again after an interruption."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scrapy.utils.request import RequestFingerprinterProtocol

from ..amounts import counted
from ..bloom.fixed import BloomFilter
from ..bloom.growing import ScalableBloomFilter
from ..bloom.removal import remove_filter
from ..errors import JobDirectoryError
from ..files import sync_directory
from ..jobdir import JobDirectory
from ..settings import BloomSettings
from .seen_file import SeenFile, is_seen_file
from .url_list import UrlList


class Source(Protocol):
    """A source of fingerprints. `size` is its number of `unit`s, `keys` at least that of its
    fingerprints; `skipped` counts each `noun` that was none, and `first_skipped` describes the
    first of these."""

    name: str
    unit: str
    noun: str
    size: int
    keys: int
    skipped: int
    first_skipped: str

    def batches(self) -> Iterator[tuple[list[bytes], int]]:
        """Yield all fingerprints, and how many units are done; reset `skipped` at the start.
        Raises OSError or BloomError."""


@dataclass
class Imported:
    """The numbers of fingerprints that were new to the filter, and that it knew, and what the
    source has skipped."""

    added: int = 0
    known: int = 0
    skipped: int = 0
    first_skipped: str | None = None


def source_in(path: Path, fingerprinter: RequestFingerprinterProtocol) -> Source:
    """Return the source in the file at `path`: fingerprints or URLs, by its content; of an
    empty one its name must say that it is a requests.seen. Raises OSError or BloomError."""
    if not path.is_file():
        raise JobDirectoryError(
            f"{path} is not a file: give a list of URLs, a requests.seen, or a Redis URL"
        )
    is_named_so = path == JobDirectory(path.parent).seen_file
    fingerprints = is_seen_file(path) if path.stat().st_size else is_named_so
    return SeenFile(path) if fingerprints else UrlList(path, fingerprinter)


def make_filter(
    job: JobDirectory, sources: Sequence[Source], settings: BloomSettings, identity: str
) -> ScalableBloomFilter:
    """Make the filter of `job`, which has none, with room for all of `sources`. Raises
    JobDirectoryError where it would keep the job's own requests.seen from being imported; what
    making a filter raises."""
    files = [source.path for source in sources if isinstance(source, SeenFile)]
    is_needed = job.has_only_seen_file and job.seen_file.stat().st_size
    if is_needed and not any(path.samefile(job.seen_file) for path in files):
        raise JobDirectoryError(
            f"{job.path} holds a requests.seen, which a crawl imports only while there is no"
            f" filter: import it as well (scrapy bloom add {job.path} {job.seen_file} …)"
        )
    job.make()
    with job.locked():
        return settings.open_filter(job.filter, identity, sum(each.keys for each in sources))


def import_into(
    bloom_filter: BloomFilter | ScalableBloomFilter,
    source: Source,
    show: Callable[[int], None] = lambda _: None,
) -> Imported:
    """Import all that `source` has; call `show` with how many of its units are done. Cost:
    3 µs a fingerprint, and 1 to 30 µs a URL."""
    imported = Imported()
    for fingerprints, done in source.batches():
        known = sum(map(bloom_filter.add, fingerprints))
        imported.known += known
        imported.added += len(fingerprints) - known
        show(done)
    imported.skipped, imported.first_skipped = source.skipped, source.first_skipped or None
    return imported


def import_job(
    job: JobDirectory, unclean: str | None, settings: BloomSettings, identity: str
) -> str:
    """Make the filter of `job`, which has none, from its `requests.seen`, all of it or nothing;
    return a line about it. Raises JobDirectoryError if `unclean` says why the job was not stopped
    cleanly, FilterLockedError if another process is at it, what making a filter raises."""
    if unclean is not None:
        raise JobDirectoryError(
            f"{job.path} holds a requests.seen of Scrapy's RFPDupeFilter and no Bloom filter, and"
            f" the job was not stopped cleanly ({unclean}): requests.seen also holds what was"
            " pending then, which Scrapy has lost and which would never be fetched. Use a new"
            f" JOBDIR, or import it all the same: scrapy bloom add {job.path} {job.seen_file}"
        )
    seen = SeenFile(job.seen_file)
    for leftover in (job.unfinished_import, job.filter):
        if leftover.is_dir():
            remove_filter(leftover)
    with settings.open_filter(job.unfinished_import, identity, seen.keys) as bloom_filter:
        imported = import_into(bloom_filter, seen)
    job.unfinished_import.rename(job.filter)
    sync_directory(job.path)
    torn = f" ({counted(imported.skipped, 'torn record')} left out)" if imported.skipped else ""
    return (
        f"Imported {counted(imported.added, 'request')} from {seen.name}{torn}: the job goes on"
        f" with the filter in {job.filter}"
    )
