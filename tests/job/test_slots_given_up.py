"""Another priority queue, whose requests have no slot: what is stored leaves out what its slot
says, so it is written anew, and is never another request."""

import os
import shutil
import signal
import sys
from itertools import count

import pytest
from scrapy import Request

from scrapy_bloom.job.failed_request import FailedRequest
from tests.failures import Failed
from tests.job.engine import Job, name_of, query
from tests.job.harness import fork
from tests.job.points import Points

ONE_QUEUE = {"SCHEDULER_PRIORITY_QUEUE": "scrapy.pqueues.ScrapyPriorityQueue"}

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


def killed(path, names, **options):
    """Open copies of a job that die after each call of these names; yield after each."""
    before = path.parent.with_name("before")
    path.parent.rename(before)

    def run(name, number):
        Points(name, number, "after").lay()
        Job(path.parent, **options).open().commit()
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
    job = new_job()
    assert urls(job) == expected


@forks
def test_a_kill_while_slots_are_given_up_loses_nothing(new_job, path):
    """All requests have their slots then, or none has."""
    expected = by_slot(new_job)
    found = []
    for _ in killed(path, ["sql UPDATE many", "sql COMMIT"], **ONE_QUEUE):
        assert urls(new_job(**(ONE_QUEUE if len(found) % 2 else {}))) == expected
        found.append(len(query(path, "SELECT DISTINCT slot FROM requests")))
    assert {*found} == {1, 3}


def test_a_failed_request_is_retried_without_its_slot(new_job, path):
    """It is stored for the slot that it had."""
    job = new_job()
    expected = push(job, range(9), "a.com")
    popped = job.pop()
    record = FailedRequest(popped.url, "GET", "status", 503, None, 1, 0.0, None)
    job.scheduler._ledger.fail(popped, record)
    job.done(popped)
    job.close()
    assert query(path, "SELECT slot FROM failed") == [("a.com",)]
    new_job(**ONE_QUEUE).close()
    assert Failed(path.parent).retry() == 1
    found = [each.url for each in iter(new_job(**ONE_QUEUE).pop, None)]
    assert sorted(found) == sorted(expected)


@pytest.mark.parametrize("options", [{}, ONE_QUEUE], ids=["slots", "one queue"])
def test_what_cannot_be_read_has_failed(new_job, path, options):
    """It is pending again when it can be, in the slot that it had."""
    expected = by_slot(new_job)
    change = "request = CAST(request || 'x' AS BLOB) WHERE slot = 'b.com'"
    query(path, f"UPDATE requests SET {change}")
    job = new_job(**options)
    found = urls(job)
    assert len(found) == 40
    job.close()
    assert {each.reason for each in Failed(path.parent).requests()} == {"unreadable"}
    for table in ("requests", "failed"):
        query(path, f"UPDATE {table} SET request = substr(request, 1, length(request) - 1)")
    assert sorted(found + urls(new_job(**options))) == expected
