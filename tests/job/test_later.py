"""Requests that wait for their time, in a job and in memory."""

import math
from datetime import datetime, timedelta, timezone

import pytest

from scrapy_bloom.job import later
from tests.job.engine import Job, request


@pytest.fixture
def clock(monkeypatch):
    """Return a clock that stands still, of the machine and of what is due."""

    class Clock:
        now = 1_800_000_000.0

        def time(self):
            return self.now

    found = Clock()
    monkeypatch.setattr("time.time", found.time)
    return found


@pytest.fixture
def new_job(tmp_path):
    """Return a function that opens a job, in the same directory each time, as after a kill."""
    jobs = []

    def new(folder=tmp_path / "job", **settings):
        for job in jobs:
            job.drop()
        jobs.append(Job(folder, **settings).open())
        return jobs[-1]

    yield new
    for job in jobs:
        job.drop()


@pytest.mark.parametrize("stored", [True, False])
def test_a_request_is_sent_at_its_time(new_job, clock, stored):
    """Not before, and then it is a request as any other; stored or in memory."""
    job = new_job(**{} if stored else {"folder": None})
    job.push("a")
    job.push("b", meta={later.NOT_BEFORE: 10, "kept": 1})
    assert len(job.scheduler) == 2
    assert job.names() == ["a"]
    clock.now += 9.9
    assert job.names() == []
    assert job.scheduler.has_pending_requests()
    clock.now += 0.2
    assert job.pop().meta == {"kept": 1}
    assert not job.scheduler.has_pending_requests()


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (5, 5),
        (0.5, 0.5),
        (0, None),
        (-3, None),
        (999_999_999, 999_999_999),
        (1_800_000_060.0, 60),
        (1_000_000_000, None),
        (datetime(2027, 1, 15, 8, 1, tzinfo=timezone.utc), 60),
        (datetime(2027, 1, 15, 9, 1, tzinfo=timezone(timedelta(hours=1))), 60),
        (datetime(1970, 1, 2, tzinfo=timezone.utc), None),
    ],
)
def test_times(clock, value, seconds):
    """Seconds from now, seconds since 1970, or an aware datetime; what is past is now."""
    given = request("a", meta={later.NOT_BEFORE: value})
    assert later.take_delay(given) == (pytest.approx(seconds) if seconds else None)
    assert given.meta == {}


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -math.inf, 10**400, True, "5", None, datetime(2027, 1, 15)]
)
def test_what_is_no_time(new_job, caplog, value):
    """One ERROR, and the request is asked at once."""
    job = new_job()
    job.push("a", meta={later.NOT_BEFORE: value})
    (record,) = [each for each in caplog.records if each.levelname == "ERROR"]
    assert "bloom_not_before is" in record.getMessage()
    assert job.pop().meta == {}


def test_a_kill_loses_no_delayed_request(new_job, clock):
    """Nor does it make one earlier; what was not committed is lost with its parent's end."""
    job = new_job()
    for name in "abc":
        job.push(name, meta={later.NOT_BEFORE: 10})
    job.commit()
    job = new_job()
    assert len(job.scheduler) == 3
    assert job.names() == []
    clock.now += 11
    assert sorted(job.names()) == ["a", "b", "c"]


def test_clocks_that_jump(new_job, clock):
    """Back: later. Forward: sooner. Nothing is lost."""
    job = new_job()
    job.push("a", meta={later.NOT_BEFORE: 10})
    clock.now -= 1000
    assert job.names() == []
    clock.now += 5000
    assert job.names() == ["a"]


def test_a_seen_request_stays_dropped(new_job):
    """A delay decides nothing of identity; a delayed request counts as seen from the push on."""
    job = new_job()
    job.push("a")
    assert not job.push("a", meta={later.NOT_BEFORE: 10})
    job.push("b", meta={later.NOT_BEFORE: 10})
    assert not job.push("b")
    assert len(job.scheduler) == 2
