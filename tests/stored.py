"""Records in the file of a job, without a crawl or requests that they are made of."""

import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.crawl.records import State, rank_of
from scrapy_bloom.crawl.slots import OneLine, Slots
from scrapy_bloom.sqlite.job_file import RequestFile, check_header
from scrapy_bloom.sqlite.listing import reading
from scrapy_bloom.sqlite.records import SqliteRecords

LIFO = (True, False)
"""Scrapy's order: the newest request first, and the oldest start request."""
FAILURE = FailedRequest("", "GET", "status/500", 500, None, 1, 1.0, None)
UNREADABLE = FailedRequest.unreadable("", "GET", "KeyError")


def records_in(file, order=LIFO, *, by_slot=True, **options):
    """Return the records in a file."""
    return SqliteRecords(file, (Slots if by_slot else OneLine)(**options), order)


def put(store, *names, slot="a", priority=0, start=False, due=None):
    """Add records with these payloads; return the id of the last."""
    for name in names:
        id_ = store.push(slot, rank_of(priority, start=start), name, due)
    return id_


def taken(store):
    """Claim all there is, and be done with it; return the payloads."""
    found = []
    while (claimed := store.next()) is not None:
        found.append(claimed[-1])
        store.done(claimed[0])
    return found


BOOKS = {
    "PRAGMA integrity_check": "ok",
    "SELECT COUNT(*) FROM request WHERE state = 1": 0,
    "SELECT COUNT(*) FROM request WHERE slot NOT IN (SELECT id FROM slot)": 0,
    "SELECT COUNT(*) - COUNT(DISTINCT place) FROM request": 0,
    "SELECT MAX(0, MAX(id), MAX(ABS(place))) > (SELECT last FROM job) FROM request": 0,
    "SELECT COUNT(*) FROM taken WHERE source > 0"
    " AND source NOT IN (SELECT id FROM request WHERE state IN (0, 2))": 0,
}
"""Queries of a job that was just opened, and their answers."""


def wrong_books(job):
    """Return what is wrong, when it is opened, in a copy of the file of a killed job."""
    if not (job / "requests.sqlite").exists():
        return []
    with tempfile.TemporaryDirectory() as folder:
        for each in job.glob("requests.sqlite*"):
            shutil.copy(each, folder)
        file = RequestFile.open(Path(folder) / "requests.sqlite")
        found = {query: file.query(query)[0][0] or 0 for query in BOOKS}
        file.close(clean=False)
    return [f"{query}: {found[query]}" for query in BOOKS if found[query] != BOOKS[query]]


def size_of(path):
    """Return the bytes of a file, 0 if there is none."""
    return path.stat().st_size if path.exists() else 0


def found_in(job):
    """Return the phase and the number of commits in the file of a job that does not run."""
    if not check_header(job / "requests.sqlite"):
        return "", 0
    with reading(job / "requests.sqlite") as file:
        ((phase,),) = file.execute("SELECT phase FROM rounds").fetchall() or [("",)]
        ((commits,),) = file.execute("SELECT commits FROM job")
    return phase, commits


class Stored:
    """The `file` at a path, and its `records`, the oldest next."""

    def __init__(self, path):
        self.file = RequestFile.open(path)
        self.records = records_in(self.file, (False, False))

    def put(self, payload=b"request", slot="", priority=0, due=None):
        """Add a request; return its number."""
        return put(self.records, payload, slot=slot, priority=priority, due=due)

    def fail(self, failed, payload=b"request", slot=""):
        """Add one that has failed."""
        id_ = self.records.put(slot, 0, payload, State.FAILED, failed.time)
        self.records.fail(id_, failed)


@contextmanager
def stored(path, unreleased=(), *, clean=True):
    """Give what is stored at `path`, to be filled, and commit and close it."""
    found = Stored(path)
    yield found
    found.file.commit(unreleased)
    found.file.close(clean=clean)
