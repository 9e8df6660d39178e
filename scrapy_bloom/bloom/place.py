"""Where a filter is: what an operator names, and how it is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..errors import JobDirectoryError
from ..jobdir import JobDirectory
from .directory import layer_path, layer_paths, lock_path
from .fixed import BloomFilter
from .growing import ScalableBloomFilter

AnyFilter = BloomFilter | ScalableBloomFilter

# as redis-py reads them
REDIS_SCHEMES = ("redis://", "rediss://", "redis+cluster://", "rediss+cluster://", "unix://")


@dataclass(frozen=True)
class Place:
    """A filter on disk: `path` is one file, or the directory of a growing filter.

    `job` is the job directory that it belongs to, if there is one. Nothing need be
    there yet.
    """

    name: str
    path: Path
    job: Path | None = None

    @classmethod
    def find(cls, name: str) -> Place:
        """Return the place that `name` means: a job directory, the directory of a
        filter, or a file (that exists or ends in `.bloom`)."""
        path = Path(name)
        if path.is_dir():
            if layer_path(path, 0).exists():
                is_in_job = path == JobDirectory(path.parent).filter
                return cls(name, path, path.parent if is_in_job else None)
        elif path.exists() or path.suffix == ".bloom":
            return cls(name, path)
        return cls(name, JobDirectory(path).filter, path)

    @property
    def is_file(self) -> bool:
        """True for a filter of fixed size in one file."""
        return self.path.suffix == ".bloom" or self.path.is_file()

    @property
    def exists(self) -> bool:
        """True if a filter is there."""
        return (self.path if self.is_file else layer_path(self.path, 0)).exists()

    @property
    def files(self) -> list[Path]:
        """The files of the filter, one a layer, oldest first."""
        return [self.path] if self.is_file else layer_paths(self.path)

    @property
    def lock(self) -> Path:
        """The file that whoever uses the filter has locked."""
        return self.path if self.is_file else lock_path(self.path)

    def require(self) -> None:
        """Raise JobDirectoryError unless a filter is there."""
        if self.exists:
            return
        if self.is_file:
            raise JobDirectoryError(f"{self.name} is not there: give the path of a filter file")
        seen = JobDirectory(self.job or self.path).seen_file
        if seen.exists():
            raise JobDirectoryError(
                f"{self.name} holds no Bloom filter, only a {seen.name} of Scrapy's"
                f" RFPDupeFilter: import it with 'scrapy bloom add {self.name} {seen}'"
            )
        raise JobDirectoryError(
            f"{self.name} holds no Bloom filter (there is no {layer_path(self.path, 0)}): give the"
            " JOBDIR of a crawl with BloomDupeFilter, the directory of a filter, or a filter file"
        )

    def open(self, *, read_only: bool = False) -> AnyFilter:
        """Open the filter, for adding to it or just to look. Raises as
        `BloomFilter.open` does, JobDirectoryError if there is none."""
        self.require()
        if self.is_file:
            return BloomFilter.open(self.path, read_only=read_only)
        return ScalableBloomFilter.open(self.path, read_only=read_only)
