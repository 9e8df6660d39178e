"""When the books of a job are closed: what is committed, and by what."""

import pytest

from scrapy_bloom.crawl import delays, ledger
from scrapy_bloom.sqlite.scheduler import DurableScheduler
from tests.crawl.engine import query


@pytest.fixture
def timers(monkeypatch):
    """The timers of the ledger, which go off when the test says so."""
    waiting = []

    class Timer:
        def __init__(self, seconds, function):
            self.function = function
            if function.__self__._ring.__name__ == "_commit_now":
                waiting.append(self)

        def cancel(self):
            if self in waiting:
                waiting.remove(self)

    # a busy machine is no slow pipeline
    monkeypatch.setattr(ledger.Ledger, "preparing_share", 1)
    monkeypatch.setattr(delays, "call_later", Timer)
    return waiting


@pytest.fixture
def job(make, tmp_path, timers):
    """An open job, and how many rows another program sees in it."""
    job = make()
    job.rows = lambda: query(tmp_path / "job", "SELECT COUNT(*) FROM request")[0][0]
    return job


def test_the_timer_goes_on_while_requests_are_in_flight(job, timers):
    """A request that ends when nothing else happens is acknowledged all the same. In the end none
    is left: a process may go on with other crawls."""
    job.push("a")
    popped = job.pop()
    for _ in range(3):
        timers.pop().function()
        assert job.rows() == 1
    job.done(popped)
    timers.pop().function()
    assert (job.rows(), timers) == (0, [])
    job.pushed("b").pop()
    assert len(timers) == 1
    job.close("shutdown")
    assert timers == []


def test_five_hundred_requests_are_a_commit(job):
    """Pushed or handed out: what a crash repeats is bounded, as rows are, if timers are late."""
    assert (DurableScheduler.commit_operations, DurableScheduler.commit_seconds) == (500, 0.1)
    job.pushed(*map(str, range(499)))
    assert job.rows() == 0
    job.push("last")
    assert job.rows() == 500
    job.pushed(*map(str, range(500, 750)))
    job.commit()
    for _ in range(500):
        job.done(job.pop())
    assert job.rows() == 750
    job.done(job.pop())
    assert job.rows() == 250
