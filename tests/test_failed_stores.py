"""The contract of the stores of failed requests: in a job, in a job that runs, and in Redis."""

import os
from collections import Counter
from dataclasses import dataclass

import pytest
from scrapy import Request

from scrapy_bloom.job.codec import Codec, Stored, url_and_method
from scrapy_bloom.job.failed_request import Choice, FailedRequest
from scrapy_bloom.redis_backend.desk import RedisFailedStore
from scrapy_bloom.sqlite_backend.failed_store import OpenFailedStore, SQLiteFailedStore
from scrapy_bloom.sqlite_backend.job_file import RequestFile
from tests.redis_backend.workers import StoreWorker

pytest_plugins = ["tests.redis_backend.fixtures"]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")

CODEC = Codec(None, 10_000)
GROUP = ("example.com", 0, 0)
STARTS = "http://example.com/"


def failed(name, reason):
    """Return the record of a page that has failed."""
    return FailedRequest(
        f"{STARTS}{name}", "GET", reason, 200, "LookupError: x", 3, 1795286400.0, f"{STARTS}list"
    )


@dataclass
class SQLiteJob:
    """A job, whose failed requests are seen from outside, or by the process that runs it."""

    folder: object
    is_open: bool

    def fill(self, *records):
        """Let requests fail for these reasons; return the store."""
        self.file = RequestFile.open(self.folder / "requests.sqlite")
        store = OpenFailedStore(self.file)
        for record in records:
            fields = Request(record.url).to_dict()
            payload = CODEC.dump(fields, "example.com", "pickle").payload
            self.file.push(GROUP, payload)
            row, *_ = self.file.pop(GROUP, newest=False)
            store.add(row, payload, record)
            self.file.delete(row)
        self.file.commit()
        if self.is_open:
            return store
        self.file.close(clean=True)
        return SQLiteFailedStore(self.folder)

    def pending(self):
        """Return the URLs of the pending requests."""
        if self.is_open:
            self.file.commit()
            self.file.close(clean=True)
        file = RequestFile.open(self.folder / "requests.sqlite")
        rows = file.query("SELECT slot, request FROM requests ORDER BY id")
        file.close(clean=True)
        return [url_and_method(Stored(*row))[0] for row in rows]


@dataclass
class RedisCrawl:
    """A crawl in Redis."""

    url: str
    key: str

    def fill(self, *records):
        """Let requests fail for these reasons; return the store."""
        self.worker = worker = StoreWorker(self.url, self.key, capacity=len(records) + 1)
        for number, record in enumerate(records):
            worker.enqueue(record.url.removeprefix(STARTS), priority=-number)
        by_url = {record.url: record for record in records}
        while by_url:
            if (request := worker.next()) is not None:
                assert worker.store.fail(request, by_url.pop(request.url))
        while not worker.store.is_idle:
            worker.exchange()
        return RedisFailedStore(worker.client, worker.key)

    def pending(self):
        """Return the URLs of the pending requests."""
        found = []
        while (request := self.worker.next()) is not None:
            self.worker.store.done(request)
            found.append(request.url)
        return found


@pytest.fixture(params=["job", "open job", "redis"])
def place(request, tmp_path):
    """Where requests fail."""
    if request.param != "redis":
        return SQLiteJob(tmp_path, request.param == "open job")
    server, key = (request.getfixturevalue(name) for name in ("redis_server", "key"))
    return RedisCrawl(server.url, key)


RECORDS = (
    failed("a1", "download/dns"),
    failed("a2", "callback"),
    failed("b1", "callback"),
    failed("c?z", "login page"),
)


def names(found):
    """Return the last words of their URLs."""
    return [each.url.removeprefix(STARTS) for each in found]


def test_all_that_is_known_is_told(place):
    """Of each of them, the oldest first; in Redis the time is that of its clock."""
    found = place.fill(*RECORDS).requests()
    known = [each._replace(time=0) for each in found]
    assert known == [each._replace(time=0) for each in RECORDS]
    assert all(each.time > 1e9 for each in found)


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        (Choice(), ["a1", "a2", "b1", "c?z"]),
        (Choice(reasons=["callback"]), ["a2", "b1"]),
        (Choice(reasons=["log*", "down*"], urls=["*/a*", "*[?]*"]), ["a1", "c?z"]),
        (Choice(urls=["*.com/[^a]*"]), ["b1", "c?z"]),
        (Choice(urls=["*/A*"]), []),
    ],
)
def test_the_chosen_ones(place, choice, chosen):
    """They are listed, pending again or forgotten, and the others are not."""
    store = place.fill(*RECORDS)
    assert names(store.requests(choice)) == chosen
    others = [name for name in names(RECORDS) if name not in chosen]
    assert store.retry(choice) == len(chosen)
    assert names(store.requests()) == others
    assert store.retry(choice) == store.drop(choice) == 0
    assert store.drop() == len(others)
    assert store.requests() == []
    assert [url.removeprefix(STARTS) for url in place.pending()] == chosen


def test_reasons_come_with_counts(place):
    """The most frequent first."""
    counts = place.fill(*RECORDS, failed("d", "login page"), failed("e", "callback")).by_reason()
    assert list(counts.items())[:2] == [("callback", 3), ("login page", 2)]
    assert counts == {"callback": 3, "login page": 2, "download/dns": 1}


def test_very_many(place):
    """More than a call to Redis moves."""
    records = [failed(str(number), f"reason {number % 2}") for number in range(250)]
    store = place.fill(*records)
    assert store.drop(Choice(reasons=["*1"])) == 125
    assert store.retry() == 125
    found = Counter(place.pending())
    assert found == Counter(each.url for each in records[::2])


def test_where_nothing_has_failed(place):
    """There is nothing to list, to retry or to forget."""
    store = place.fill()
    assert (store.requests(), store.by_reason(), store.retry(), store.drop()) == ([], {}, 0, 0)
