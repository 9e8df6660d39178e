"""How far a job is, for alerts and for others to see."""

import json
import time

import pytest

from scrapy_bloom.errors import RequestFileError
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.sqlite.progress import KEPT_SECONDS
from scrapy_bloom.sqlite.status import JobStatus, job_view
from tests.crawl.engine import query
from tests.failures import fail_download

STATS = ("pending", "in_flight", "failed", "commits", "commit_seconds_max", "bytes")


def noted(folder):
    """Return what has been noted, as another program sees it."""
    rows = query(folder, "SELECT time, figures FROM progress ORDER BY time")
    return [(at, json.loads(figures)) for at, figures in rows]


def test_stats_that_can_be_alerted_on(make_round, tmp_path):
    """They are there while the crawl runs, and at its end."""
    job = make_round().started(*"abcd")
    job.push("e", meta={"function": lambda: None})
    first, second = job.pop(), job.pop()
    fail_download(job, second)
    job.commit()
    stats = {name: job.stat(f"scheduler/{name}") for name in STATS}
    assert (stats["pending"], stats["in_flight"], stats["failed"]) == (3, 1, 1)
    assert 0 <= stats["commit_seconds_max"] <= round(job.scheduler.ledger.slowest_commit, 6)
    assert stats["bytes"] > 4096
    (*_, (at, figures)) = noted(tmp_path / "job")
    assert abs(time.time() - at) < 60
    assert (figures["pending"], figures["filter_capacity"]) == (3, 1000)
    job.done(first)
    job.finish()
    assert [job.stat(f"scheduler/{name}") for name in STATS[:3]] == [0, 0, 1]
    assert job.stat("scheduler/commits") > stats["commits"]


def test_what_is_noted_stays_small(job, tmp_path, monkeypatch):
    """One a second, of the last minute; a clock that was set back leaves no future behind."""
    clock = [time.time() + 1000]
    monkeypatch.setattr(time, "time", lambda: clock[0])
    for number in range(200):
        clock[0] += 0.5
        job.push(str(number))
        job.commit()
    assert KEPT_SECONDS <= len(noted(tmp_path / "job")) <= KEPT_SECONDS + 1
    clock[0] -= 30
    job.push("x")
    job.commit()
    assert noted(tmp_path / "job")[-1][0] == clock[0]


def test_what_has_become_of_a_job(make_round, tmp_path):
    """Running, killed, stopped, finished with and without failed requests, and its round;
    the only commit of a short one counts."""
    folder = tmp_path / "job"
    assert job_view(folder).state is None
    job = make_round().started("a", "b")
    assert job_view(folder).state[:3] == ("running", None, 0)
    job.commit()
    assert job_view(folder).state[:2] == ("running", 1)
    job.drop()
    assert job_view(folder).state[:2] == ("killed", 1)
    make_round().started("a").close("shutdown")
    assert job_view(folder).state[:2] == ("stopped", 1)
    job = make_round().started("a")
    fail_download(job, job.pop())
    job.finish()
    assert job_view(folder).state[:3] == ("finished", 1, 1)
    (job := make_round(BLOOM_RETRY_FAILED=True).started("a")).finish()
    assert job_view(folder).state[:3] == ("finished", 1, 0)
    assert JobStatus(folder).figures()["commits"] == job.stat("scheduler/commits") == 1


@pytest.mark.parametrize("figures", ["1", "{}", '{"began": 1, "pending": "x"}', "{"])
def test_damaged_figures_are_an_error_that_names_the_file(make_round, tmp_path, figures):
    """For a look at the job; a start goes on, and counts anew."""
    make_round().close()
    path = tmp_path / "job"
    query(path, "DELETE FROM progress")
    query(path, "INSERT INTO progress VALUES (1.0, ?), (2.0, ?)", figures, figures)
    query(path, "UPDATE job SET clean = 0")
    refused = pytest.raises(RequestFileError, match=r"requests\.sqlite cannot be read: ")
    with JobDirectory(path).locked(), refused:
        JobStatus(path).figures()
    make_round().close()
    assert JobStatus(path).figures()["round_pages"] == 0
