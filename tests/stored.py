"""Requests that are put into the file of a job without a crawl."""

from contextlib import contextmanager

from scrapy_bloom.job.records import New, State, rank_of
from scrapy_bloom.job.slots import Slots
from scrapy_bloom.sqlite_backend.job_file import RequestFile
from scrapy_bloom.sqlite_backend.records import SqliteRecords


class Stored:
    """The `file` at a path, and its `records`, the oldest next."""

    def __init__(self, path):
        self.file = RequestFile.open(path)
        self.records = SqliteRecords(self.file, Slots(), (False, False))

    def put(self, payload=b"request", slot="", priority=0, due=None):
        """Add a request; return its number."""
        return self.records.push(New(slot, rank_of(priority, start=False), payload, due))

    def fail(self, failed, payload=b"request", slot=""):
        """Add one that has failed."""
        id_ = self.records.push(New(slot, 0, payload, failed.time), State.FAILED)
        self.records.fail(id_, failed)


@contextmanager
def stored(path, unreleased=(), *, clean=True):
    """Give what is stored at `path`, to be filled, and commit and close it."""
    found = Stored(path)
    yield found
    found.file.commit(unreleased)
    found.file.close(clean=clean)
