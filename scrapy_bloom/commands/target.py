"""What an operator names: a filter, a job, a delta store, or a place in Redis.

Each subcommand says which kinds it takes. What a name means, and how the other kinds are
refused, is decided here.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from ..bloom import layer_path
from ..bloom.file import MAGIC
from ..delta.file_store import TABLE
from ..errors import BloomError
from ..jobdir import JobDirectory
from ..redis.client import REDIS_SCHEMES, public_url


class Kind(Enum):
    """What a target is, as an error asks for it."""

    FILTER = "the JOBDIR or the filter of a crawl with BloomDupeFilter"
    FILE = "a filter file"
    LAYER = "a file of a growing filter"
    NEW = "a job directory"
    REQUESTS = "the JOBDIR of a crawl with DurableScheduler"
    DELTA_STORE = "the directory of a delta store (BLOOM_DELTA_DIR)"
    REDIS = "redis://HOST/DB with --key"
    DELTA_REDIS = "redis://HOST/DB with --spider or -s BLOOM_DELTA_DIR=NAME"
    SCRAPY_REDIS = "redis://HOST/DB of scrapy-redis with --spider"


_COPIES = "'scrapy bloom export' copies a filter out of Redis, 'scrapy bloom load' into it"


@dataclass(frozen=True)
class Target:
    """What `name` means. `path` is the file or directory of a filter, there or not, or the
    directory of a delta store. `job` is the job directory of the filter, if there is one."""

    name: str
    kinds: frozenset[Kind]
    path: Path = Path()
    job: JobDirectory | None = None

    @classmethod
    def find(cls, name: str) -> Target:
        """Return what `name` means. Raises OSError."""
        if name.startswith(REDIS_SCHEMES):
            return cls(name, frozenset({Kind.REDIS, Kind.DELTA_REDIS, Kind.SCRAPY_REDIS}))
        if not name or _is_url(name):
            return cls(name, frozenset())
        path = Path(name)
        if not path.is_dir() and (path.exists() or path.suffix == ".bloom"):
            return cls(name, _kinds_of_file(path), path)
        job = JobDirectory(path)
        if (path / TABLE).exists() and not (job.has_filter or job.requests.exists()):
            return cls(name, frozenset({Kind.DELTA_STORE}), path)
        if layer_path(path, 0).exists():
            job = JobDirectory(path.parent)
            if path != job.filter:
                return cls(name, frozenset({Kind.FILTER}), path)
        return cls(name, _kinds_of_job(job), job.filter, job)

    def require(self, *takes: Kind) -> Target:
        """Return this if it is of a kind that is taken, or the delta store in a job, if that is the
        first kind; else raise BloomError: what it is, and what to give instead."""
        if self.job and takes[0] is Kind.DELTA_STORE and (self.job.path / TABLE).exists():
            return Target(self.name, frozenset({Kind.DELTA_STORE}), self.job.path)
        if self.kinds.isdisjoint(takes):
            first, *others = takes
            hidden = {*Kind} if first is Kind.NEW else {Kind.LAYER, Kind.NEW}
            *most, last = (each.value for each in (first, *others) if each not in hidden - {first})
            what, remedy = self._described(first)
            instead = f"give {', '.join(most)} or {last}" if most else f"give {last}"
            raise BloomError(f"{what}: {remedy or instead}")
        return self

    def _described(self, wanted: Kind) -> tuple[str, str]:
        """Return what this is and the remedy, empty where that is to give what is wanted."""
        if Kind.REDIS in self.kinds:
            remedy = "" if wanted is Kind.DELTA_STORE else _COPIES
            return f"{public_url(self.name)} is a URL of Redis", remedy
        if wanted is Kind.REDIS or _is_url(self.name):
            # what follows the first word may be a password
            (start,) = re.findall(r"^\s*[\w+.-]*", self.name)
            return f"'{start}…' is no URL of Redis", ""
        if not self.name:
            return "a PLACE is empty", "give a job directory (. is this one)"
        what, remedy = self._of_job(self.job, wanted) if self.job else self._without_job()
        return f"{self.name} {what}", remedy

    def _without_job(self) -> tuple[str, str]:
        job, kinds, whole = JobDirectory(self.path.parent), self.kinds, f"give {self.path.parent}"
        files_of_job = {job.requests, job.seen_file, job.worker_feeds}
        cases = (
            (Kind.LAYER in kinds, "is one file of a growing filter", whole),
            (Kind.DELTA_STORE in kinds, "is a delta store", ""),
            (Kind.FILTER in kinds, "is a filter alone", ""),
            (self.path in files_of_job, "is one file of a job", whole),
            (self.path.name == TABLE, "is one file of a delta store", whole),
            (not self.path.exists(), "is not there, and by its name is one file", ""),
            (Kind.FILE in kinds, "is one file", ""),
            (True, "is one file, and no filter", ""),
        )
        return next((what, remedy) for is_so, what, remedy in cases if is_so)

    def _of_job(self, job: JobDirectory, wanted: Kind) -> tuple[str, str]:
        if wanted is Kind.DELTA_STORE:
            return f"holds no delta store (there is no {TABLE})", ""
        if job.worker_feeds.exists() and not job.requests.exists():
            return "is the JOBDIR of a worker, whose filter and requests are in Redis", ""
        if wanted is Kind.REQUESTS and job.scrapy_queue.exists():
            return (
                f"is the JOBDIR of Scrapy's own scheduler, whose pending requests are in"
                f" {job.scrapy_queue}",
                "start it once with SCHEDULER = 'scrapy_bloom.DurableScheduler', which takes them"
                " over",
            )
        if wanted is Kind.REQUESTS:
            return f"holds no requests of DurableScheduler (there is no {job.requests})", ""
        if job.seen_file.exists():
            what = f"holds no Bloom filter, only a {job.seen_file.name} of Scrapy's RFPDupeFilter"
            return what, f"import it with 'scrapy bloom add {self.name} {job.seen_file}'"
        if job.requests.exists():
            what = f"holds no Bloom filter, only the {job.requests.name} of DurableScheduler"
            return what, f"look at that with 'scrapy bloom top {self.name}'"
        return f"holds no Bloom filter (there is no {layer_path(self.path, 0)})", ""


def _is_url(name: str) -> bool:
    """Return True for what may be a URL, and so hold a password: also one that begins with
    something else, such as a space, or that has no scheme."""
    if re.search(r"^[\w+.-]+:/|://", name) is not None:
        return True
    return re.search(":.*@", name) is not None and not Path(name).exists()


def _kinds_of_file(path: Path) -> frozenset[Kind]:
    if not path.is_file():
        return frozenset()
    if path.stem.isdecimal() and layer_path(path.parent, 0).exists():
        return frozenset({Kind.LAYER})
    with path.open("rb") as file:
        is_filter = path.suffix == ".bloom" or file.read(len(MAGIC)) == MAGIC
    return frozenset({Kind.FILE} if is_filter else ())


def _kinds_of_job(job: JobDirectory) -> frozenset[Kind]:
    kinds = {Kind.REQUESTS} if job.requests.exists() else set()
    if job.has_filter:
        kinds.add(Kind.FILTER)
    elif kinds or not job.worker_feeds.exists():
        kinds.add(Kind.NEW)
    return frozenset(kinds)
