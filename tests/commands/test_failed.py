"""The requests of a job that have failed: listed, asked again, forgotten."""

import json
import os

import pytest

from scrapy_bloom.durable.failed import FailedRequest
from scrapy_bloom.durable.failed_rows import FailedRows
from scrapy_bloom.durable.inspection import unfinished_requests
from scrapy_bloom.durable.request_file import RequestFile
from scrapy_bloom.jobdir import JobDirectory

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")

MANY = 7


@pytest.fixture
def failed_job(tmp_path):
    """A finished job with some requests that have failed."""
    file = RequestFile.open(tmp_path / "requests.sqlite")
    rows = FailedRows(file)
    for number in range(MANY + 1):
        file.push(("", 0, 0), "pickle", b"request")
        row, *_ = file.pop(("", 0, 0), newest=False)
        rows.add(
            row,
            b"request once more",
            FailedRequest(
                f"http://example.com/{number}",
                "GET" if number else "POST",
                "download/timeout" if number else "callback",
                None if number else 200,
                "TimeoutError: " + "x" * 200,
                3,
                1795286400.0,
                "http://example.com/list",
            ),
        )
        file.delete(row)
    file.commit()
    file.close(clean=True)
    return tmp_path


def test_failed_requests_are_listed_by_reason(run, failed_job):
    """With counts, the most frequent first, and what is known of a few of them."""
    result = run(failed_job, "failed", ".")
    assert result.status == 0
    assert result.lines[0] == ".: 8 failed requests"
    assert result.lines[2:5] == [
        "download/timeout  7",
        "  http://example.com/1",
        "    3 attempts, last 2026-11-21T18:40:00+00:00, TimeoutError: " + "x" * 86 + "…",
    ]
    assert "  and 2 more (all with --json, or -o FILE)" in result.lines
    assert "  POST http://example.com/0" in result.lines
    assert run(failed_job, "failed", ".", "--reason", "callback").lines[0] == ".: 1 failed request"


def test_failed_requests_come_as_json(run, failed_job):
    """One object each, whole."""
    found = run(failed_job, "failed", ".", "--json").json
    assert len(found) == MANY + 1
    assert found[0] == {
        "url": "http://example.com/0",
        "method": "POST",
        "reason": "callback",
        "status": 200,
        "exception": "TimeoutError: " + "x" * 200,
        "attempts": 3,
        "time": "2026-11-21T18:40:00+00:00",
        "referer": "http://example.com/list",
    }
    assert run(failed_job, "failed", ".", "--json", "--url", "*/7", "*/1").json[1]["url"] == (
        "http://example.com/7"
    )


def test_urls_of_failed_requests_are_written(run, failed_job):
    """To a new file, or printed; what is there already is not overwritten."""
    printed = run(failed_job, "failed", ".", "--url", "*/[01]", "-o", "-")
    assert printed.lines == ["http://example.com/0", "http://example.com/1"]
    assert run(failed_job, "failed", ".", "-o", "urls.txt").lines == ["wrote 8 URLs to urls.txt"]
    assert len((failed_job / "urls.txt").read_text().splitlines()) == MANY + 1
    assert "is there already" in run(failed_job, "failed", ".", "-o", "urls.txt").refusal


def test_failed_requests_are_made_pending(run, failed_job):
    """Those that are chosen, as they are to be asked."""
    result = run(failed_job, "retry", ".", "--reason", "download/*")
    assert result.lines == ["7 requests pending again, for the next start"]
    assert unfinished_requests(failed_job) == MANY
    assert json.loads(run(failed_job, "retry", ".", "--json").out) == {"retried": 1}
    assert run(failed_job, "retry", ".").lines == ["0 requests pending again, for the next start"]
    file = RequestFile.open(failed_job / "requests.sqlite")
    assert file.pop(("", 0, 0), newest=False)[1:] == ("pickle", b"request once more")


def test_failed_requests_are_forgotten_when_that_is_meant(run, failed_job):
    """There is no way back, so it has to be said."""
    refusal = run(failed_job, "drop", ".", "--reason", "callback").refusal
    assert refusal.startswith("1 failed request of . would be forgotten for good")
    result = run(failed_job, "drop", ".", "--reason", "callback", "--yes")
    assert result.lines == ["forgot 1 failed request"]
    assert len(run(failed_job, "failed", ".", "--json").json) == MANY
    assert unfinished_requests(failed_job) == 0


def test_a_place_without_requests_is_refused(run, tmp_path):
    """With what would do; and a job that runs is not changed."""
    for command in ("failed", "retry", "drop"):
        assert "no requests of DurableScheduler" in run(tmp_path, command, "job").refusal
        assert "job directory" in run(tmp_path, command, "redis://localhost").refusal


def test_a_running_job_is_not_changed(run, failed_job):
    """Its failed requests can be listed."""
    with JobDirectory(failed_job).lock():
        assert "in use by process" in run(failed_job, "retry", ".").refusal
        assert "in use by process" in run(failed_job, "drop", ".", "--yes").refusal
        assert run(failed_job, "failed", ".").status == 0
