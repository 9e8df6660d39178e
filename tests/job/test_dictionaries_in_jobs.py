"""The dictionaries of a job: each row needs one that is there, wherever the process dies; without
it the row's request has failed, and is never another one."""

import marshal
import os
import pickle
import shutil
import signal
import sqlite3
import sys
from contextlib import closing
from itertools import count

import pytest
from scrapy import Request

from scrapy_bloom.errors import RequestFileError
from scrapy_bloom.job.dictionaries import id_of
from scrapy_bloom.job.failed_request import CAPPED, Choice, FailedRequest
from scrapy_bloom.sqlite_backend.failed_store import SQLiteFailedStore
from scrapy_bloom.sqlite_backend.job_reader import stopped_job
from tests.job.engine import Job, name_of, query
from tests.job.harness import fields_of, fork
from tests.job.points import Points

ONE_QUEUE = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}
MANY = 40
"""More requests than the first dictionary is made of."""

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")
forks = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="forks")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "job" / "requests.sqlite"


def page(number, host="example.com"):
    """Return a request for a page of a host, in the slot of that."""
    folder = f"http://{host}/catalogue/part-{number % 3}/"
    return Request(
        f"{folder}item-{number}.html",
        headers={"Referer": folder},
        meta={"download_slot": host, "depth": 3},
        dont_filter=True,
    )


def push(job, numbers, host="example.com"):
    """Push pages; return their URLs."""
    pages = [page(number, host) for number in numbers]
    assert all(map(job.scheduler.enqueue_request, pages))
    return [each.url for each in pages]


def urls(job):
    """Return the URLs of all requests, done with each."""
    found = []
    while (popped := job.pop_any()) is not None:
        expected = page(int(name_of(popped)[5:-5]), popped.meta["download_slot"])
        assert popped.to_dict(spider=job.spider) == expected.to_dict(spider=job.spider)
        found.append(popped.url)
        job.done(popped)
    return sorted(found)


def rows_of(path):
    """Return the stored bytes of all requests, and the dictionaries, which are all there."""
    copy = path.parent.with_name("read")
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(path.parent, copy)
    with closing(sqlite3.connect(copy / path.name)) as database:
        found = [
            payload
            for table in ("requests", "failed")
            for (payload,) in database.execute(f"SELECT request FROM {table} ORDER BY id")
        ]
        stored = [text for (text,) in database.execute("SELECT dictionary FROM dictionaries")]
    needed = {payload[1:3].hex() for payload in found if payload[0] in (2, 3)}
    assert needed <= {*map(id_of, stored)}
    return found, stored


def test_most_requests_are_stored_with_a_dictionary_of_the_job(new_job, path):
    """After the first few. It is there for the next process, which pushes with it at once."""
    job = new_job()
    expected = push(job, range(MANY))
    job.close()
    before, stored = rows_of(path)
    assert len(stored) == 1
    assert [payload[0] for payload in before[-20:]] == [2] * 20
    assert sum(map(len, before[-20:])) < 20 * 40
    job = new_job()
    expected += push(job, [MANY])
    job.commit()
    after, now = rows_of(path)
    assert (after[-1][:3], now) == (before[-1][:3], stored)
    assert urls(job) == sorted(expected)


def test_a_dictionary_that_was_not_committed_is_gone_with_its_rows(new_job, path):
    """The next process makes one of its own."""
    job = new_job()
    expected = push(job, range(5))
    job.commit()
    push(job, range(5, MANY))
    job.scheduler._ledger.store._file.write()
    found, stored = rows_of(path)
    assert (len(found), stored) == (5, [])
    job = new_job()
    expected += push(job, range(5, MANY))
    job.commit()
    assert len(rows_of(path)[1]) == 1
    assert urls(job) == sorted(expected)


def killed(path, names, *, opening=False, crawl=Job.commit, **options):
    """Crawl with copies of a job that die after each call of these names; yield after each."""
    before = path.parent.with_name("before")
    path.parent.rename(before)

    def run(name, number):
        points = Points(name, number, "after" if opening else "count")
        points.lay()
        job = Job(path.parent, **options).open()
        points.counts.clear()
        points.action = "after"
        crawl(job)
        os._exit(0)

    for name in names:
        for number in count(1):
            shutil.rmtree(path.parent, ignore_errors=True)
            shutil.copytree(before, path.parent)
            _, status = os.waitpid(fork(run, path.parent.with_suffix(".log"), name, number), 0)
            yield
            if os.waitstatus_to_exitcode(status) == 0:
                break
            assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


@forks
def test_a_kill_anywhere_leaves_no_row_without_its_dictionary(new_job, path):
    """Wherever the process dies while it pushes: what is committed can be read."""
    new_job().close()

    def crawl(job):
        for first in range(0, 30, 10):
            push(job, range(first, first + 10))
            job.commit()

    left = set()
    for _ in killed(path, ["sql INSERT", "sql INSERT many", "sql COMMIT"], crawl=crawl):
        found, stored = rows_of(path)
        left.add((len(found), len(stored)))
    assert left == {(0, 0), (10, 0), (20, 1), (30, 1)}
    assert len(urls(new_job())) == 30


def test_a_dictionary_that_cannot_be_stored_is_not_used(new_job, path, monkeypatch):
    """The spider is closed, and what was committed before is whole."""
    job = new_job()
    push(job, range(10))
    job.commit()
    file = job.scheduler._ledger.store._file

    def fail(dictionary):
        raise sqlite3.OperationalError("disk I/O error")

    monkeypatch.setattr(file, "keep_dictionary", fail)
    for number in range(10, MANY):
        job.scheduler.enqueue_request(page(number))
    assert job.scheduler._ledger.stopped
    job.close("bloom_error")
    assert len(rows_of(path)[0]) == 10
    assert len(urls(new_job())) == 10


# Another priority queue, whose requests have no slot


def by_slot(new_job):
    """Leave a job with requests of three hosts; return their URLs."""
    job = new_job()
    expected = [url for host in ("a.com", "b.com", "c.com") for url in push(job, range(20), host)]
    job.close()
    return sorted(expected)


def test_requests_stay_the_same_without_slots(new_job, path):
    """Their bytes leave out what the slot says, so they are written anew."""
    expected = by_slot(new_job)
    new_job(**ONE_QUEUE).close()
    assert query(path, "SELECT DISTINCT slot FROM requests") == [("",)]
    assert {payload[0] for payload in rows_of(path)[0]} == {2}
    job = new_job()
    assert urls(job) == expected


@forks
def test_a_kill_while_slots_are_given_up_loses_nothing(new_job, path):
    """All requests have their slots then, or none has."""
    expected = by_slot(new_job)
    found = []
    for _ in killed(path, ["sql UPDATE many", "sql COMMIT"], opening=True, **ONE_QUEUE):
        assert urls(new_job(**(ONE_QUEUE if len(found) % 2 else {}))) == expected
        found.append(len(query(path, "SELECT DISTINCT slot FROM requests")))
    assert {*found} == {1, 3}


def test_a_failed_request_is_retried_without_its_slot(new_job, path):
    """It is stored for the slot that it had."""
    job = new_job()
    expected = push(job, range(MANY), "a.com")
    popped = job.pop()
    record = FailedRequest(popped.url, "GET", "status", 503, None, 1, 0.0, None)
    job.scheduler._ledger.fail(popped, record)
    job.done(popped)
    job.close()
    assert query(path, "SELECT slot, hex(request) GLOB '02*' FROM failed") == [("a.com", 1)]
    new_job(**ONE_QUEUE).close()
    assert SQLiteFailedStore(path.parent).retry() == 1
    found = [each.url for each in iter(new_job(**ONE_QUEUE).pop, None)]
    assert sorted(found) == sorted(expected)


# A dictionary that is not there


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM dictionaries",
        "UPDATE dictionaries SET dictionary = x''",
        "UPDATE dictionaries SET dictionary = 'text'",
        "UPDATE dictionaries SET dictionary = zeroblob(length(dictionary))",
    ],
)
@pytest.mark.parametrize("options", [{}, ONE_QUEUE], ids=["slots", "one queue"])
def test_requests_without_their_dictionary_have_failed(new_job, path, caplog, damage, options):
    """With the dictionary they are pending again, in the slots that they had."""
    expected = by_slot(new_job)
    ((dictionary,),) = query(path, "SELECT dictionary FROM dictionaries")
    readable = {row for row, payload in enumerate(rows_of(path)[0]) if payload[0] != 2}
    assert 0 < len(readable) < len(expected)
    query(path, damage)
    job = new_job(**options)
    found = urls(job)
    assert len(found) == len(readable)
    job.close()
    failed = SQLiteFailedStore(path.parent).requests()
    assert len(failed) + len(found) == len(expected)
    assert {each.reason for each in failed} == {"unreadable"}
    name = id_of(dictionary)
    assert {each.exception for each in failed} == {
        f"ValueError: its dictionary {name} is not there"
    }
    assert f"its dictionary {name} is not" in caplog.text
    query(path, "DELETE FROM dictionaries")
    query(path, "INSERT INTO dictionaries VALUES (NULL, ?)", dictionary)
    assert sorted(found + urls(new_job(**options))) == expected


def test_a_stopped_job_is_read_with_its_dictionaries(new_job, path):
    """By what continues a crawl elsewhere; a request that lacks its own is named."""
    job = new_job()
    expected = push(job, range(MANY))
    job.close()
    with stopped_job(path, pickles=True) as left:
        found = [*left.requests(fields_of)]
    assert [each["url"] for each in found] == expected
    assert found[-1]["headers"] == {b"Referer": [expected[-1].rpartition("/")[0].encode() + b"/"]}
    query(path, "DELETE FROM dictionaries")
    with (
        stopped_job(path, pickles=True) as left,
        pytest.raises(RequestFileError, match=r"row \d+ of .* cannot be moved .*dictionary"),
    ):
        list(left.requests(fields_of))


def test_a_dictionary_that_is_text_does_not_hide_what_is_over_the_budget(make, tmp_path, path):
    """Nor keep it from being dropped: only requests that need that dictionary have no URL then."""
    make().close()
    query(path, "INSERT INTO dictionaries VALUES (1, 'damaged')")
    query(path, "INSERT INTO budget VALUES (1, 'example.com', 0)")
    query(path, "INSERT INTO capped VALUES (1, 1, 0, 0, 0, x'00')")
    store = SQLiteFailedStore(tmp_path / "job")
    assert [each.reason for each in store.requests()] == [CAPPED]
    assert store.drop(Choice(urls=("",))) == 1


# Rows of version 0.2.0


def test_rows_of_all_forms_are_in_one_job(new_job, path):
    """Pickle and marshal as 0.2.0 wrote them, with the names of their formats, and new ones."""
    job = new_job()
    expected = push(job, range(MANY))
    job.close()
    for row, number in enumerate(range(MANY, MANY + 20), 1000):
        fields = page(number).to_dict()
        expected.append(fields["url"])
        form, dumps = ("pickle", pickle.dumps) if row % 2 else ("marshal", marshal.dumps)
        query(
            path,
            "INSERT INTO requests VALUES (?, 'example.com', 0, 0, 0, ?, ?)",
            *(row, form, dumps(fields, 4)),
        )
    with stopped_job(path, pickles=True) as left:
        assert [each["url"] for each in left.requests(fields_of)] == expected
    assert urls(new_job(**ONE_QUEUE)) == sorted(expected)
