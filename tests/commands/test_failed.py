"""The requests of a job or a crawl that have failed: listed, asked again, forgotten."""

import json
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from scrapy_bloom.crawl.codec import Codec
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.layout import in_one_slot
from scrapy_bloom.redis.status import CrawlReader
from scrapy_bloom.sqlite import desk as orders
from scrapy_bloom.sqlite.status import job_view
from tests.crawl.engine import Job
from tests.redis.workers import StoreWorker
from tests.stored import stored

pytest_plugins = ["tests.redis.fixtures"]
pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")

MANY = 7


def failed_request(number):
    return FailedRequest(
        f"http://example.com/{number}",
        "GET" if number else "POST",
        "download/timeout" if number else "callback",
        None if number else 200,
        "TimeoutError: " + "x" * 200,
        3,
        1795286400.0,
        "http://example.com/list",
    )


def fail_in(folder, *failures, waiting=()):
    """Let requests of a job fail, beside one that waits in each of some slots; return it."""
    with stored(folder / "requests.sqlite") as job:
        for slot in waiting:
            job.put(slot=slot)
        for failure in failures:
            job.fail(failure)
    return folder


FAILURES = [failed_request(number) for number in range(MANY + 1)]


@pytest.fixture
def failed_job(tmp_path):
    """A finished job with some requests that have failed."""
    return fail_in(tmp_path, *FAILURES)


@dataclass
class FailedPlace:
    """Where they are: what names the place in this folder, what it is called, and who is to ask
    them again."""

    run: Callable
    place: list
    name: str
    pending: str

    def __call__(self, subcommand, *options):
        """Run a subcommand there."""
        return self.run(Path(), subcommand, *self.place, *options)

    def unfinished(self):
        """Return how many requests wait, in Redis as the lists have it and as it is counted."""
        if self.place == ["."]:
            return job_view(Path()).unfinished
        url, _, key = self.place
        with RedisClient(url) as client:
            crawl = CrawlReader(client, in_one_slot(key)).look()
            waiting = CrawlReader(client, in_one_slot(key)).pending().by_slot.total()
        assert (crawl.waiting, crawl.over) == (waiting, waiting == 0)
        return waiting


@pytest.fixture(params=["job", "redis"])
def make_failed(request, run, tmp_path, monkeypatch):
    """A function that makes a job, or a crawl, of which these have failed and others wait."""
    monkeypatch.chdir(tmp_path)

    def make(*failures, waiting=()):
        if request.param == "job":
            fail_in(tmp_path, *failures, waiting=waiting)
            return FailedPlace(run, ["."], ".", "for the next start")
        server, key = map(request.getfixturevalue, ("redis_server", "key"))
        worker = StoreWorker(server.url, key)
        for number, failure in enumerate(failures):
            worker.enqueue(str(number))
            assert worker.store.fail(worker.next(), failure)
            worker.exchange()
        for slot in waiting:
            worker.enqueue("other", meta={"download_slot": slot})
        worker.exchange()
        worker.leave(over=not waiting)
        place = [server.url, "--key", key]
        return FailedPlace(run, place, f"{server.url} {key}", "for all workers")

    return make


@pytest.fixture
def failed(make_failed):
    """A finished job, and a finished crawl."""
    return make_failed(*FAILURES)


def test_failed_requests_are_listed_by_reason(failed):
    """With counts, the most frequent first, and what is known of a few of them."""
    result = failed("failed")
    assert result.status == 0
    assert result.lines[0] == f"{failed.name}: 8 failed requests"
    found = failed("failed", "--json").json
    assert result.lines[2:5] == [
        "download/timeout  7",
        "  http://example.com/1",
        f"    3 attempts, last {found[1]['time']}, TimeoutError: " + "x" * 86 + "…",
    ]
    assert "  and 2 more (all with --json, or -o FILE)" in result.lines
    assert "  POST http://example.com/0" in result.lines
    assert failed("failed", "--reason", "callback").lines[0] == f"{failed.name}: 1 failed request"


HOSTILE = FailedRequest(
    "http://example.com/\x1b]0;owned\x07",
    "GET",
    "login \x1b[2J\u202e\u200f\ufeffpage",
    200,
    "LookupError: \x9b31m\nhttp://example.com/faked",
    1,
    1795286400.0,
    None,
)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (
            ["failed"],
            [
                r"http://example.com/\x1b]0;owned\x07",
                r"login \x1b[2J\u202e\u200f\ufeffpage",
                r"\x9b31m",
            ],
        ),
        (["failed", "-o", "-"], [r"http://example.com/\x1b]0;owned\x07"]),
        (["top", "--once"], [r"login \x1b[2J\u202e\u200f\ufeffpage", r"\x1b[1mslot"]),
    ],
)
def test_pages_do_not_write_to_the_terminal(make_failed, monkeypatch, command, shown):
    """Whatever they have put into a URL, a reason, an exception or a slot."""
    monkeypatch.setenv("COLUMNS", "120")
    hostile = make_failed(HOSTILE, waiting=["\x1b[1mslot"])
    out = hostile(*command).out
    assert [char for char in out.replace("\n", "") if not char.isprintable()] == []
    assert [text for text in shown if text not in out] == []
    (found,) = hostile("failed", "--json").json
    assert (found["url"], found["reason"]) == (HOSTILE.url, HOSTILE.reason)


def test_errors_do_not_write_to_the_terminal_either(run, tmp_path):
    """As where the name of a job comes out of a script."""
    assert r"\x1b[2Jjob holds no requests" in run(tmp_path, "failed", "\x1b[2Jjob").refusal


def test_failed_requests_come_as_json(failed):
    """One object each, whole."""
    found = failed("failed", "--json").json
    assert len(found) == MANY + 1
    at = found[0].pop("time")  # in Redis by its clock
    assert at == "2026-11-21T18:40:00+00:00" or failed.place != ["."]
    assert found[0] == {
        "url": "http://example.com/0",
        "method": "POST",
        "reason": "callback",
        "status": 200,
        "exception": "TimeoutError: " + "x" * 200,
        "attempts": 3,
        "referer": "http://example.com/list",
    }
    assert failed("failed", "--json", "--url", "*/7", "*/1").json[1]["url"] == (
        "http://example.com/7"
    )


def test_urls_of_failed_requests_are_written(failed):
    """To a new file, or printed; what is there already is not overwritten."""
    printed = failed("failed", "--url", "*/[01]", "-o", "-")
    assert printed.lines == ["http://example.com/0", "http://example.com/1"]
    assert failed("failed", "-o", "urls.txt").lines == ["wrote 8 URLs to urls.txt"]
    assert len(Path("urls.txt").read_text().splitlines()) == MANY + 1
    assert "is there already" in failed("failed", "-o", "urls.txt").refusal


def test_a_failed_request_without_a_known_url_is_no_empty_line(failed_job, run):
    """A list of URLs holds nothing else."""
    fail_in(failed_job, failed_request(9)._replace(url="", reason="login page"))
    assert "  (a URL that cannot be read)" in run(failed_job, "failed", ".").lines
    assert len(run(failed_job, "failed", ".", "-o", "-").lines) == MANY + 1


def test_failed_requests_are_made_pending(failed):
    """Those that are chosen, as they are to be asked."""
    result = failed("retry", "--reason", "download/*")
    assert result.lines == [f"7 requests pending again, {failed.pending}"]
    assert failed.unfinished() == MANY
    assert json.loads(failed("retry", "--json").out) == {"retried": 1}
    assert failed("retry").lines == [f"0 requests pending again, {failed.pending}"]
    assert failed.unfinished() == MANY + 1


def test_failed_requests_are_forgotten_when_that_is_meant(failed):
    """There is no way back, so it has to be said."""
    refusal = failed("drop", "--reason", "callback").refusal
    assert refusal.startswith(f"1 failed request of {failed.name} would be forgotten for good")
    result = failed("drop", "--reason", "callback", "--yes")
    assert result.lines == ["forgot 1 failed request"]
    assert len(failed("failed", "--json").json) == MANY
    assert failed.unfinished() == 0


@pytest.mark.parametrize("detail", ["{", "{}", '{"reason": 1}', "[" * 100_000, 5, b"\0", None])
def test_a_damaged_record_hides_no_other(run, failed_job, detail):
    """It has failed as unreadable, under its own URL, and can be retried like the others."""
    with closing(sqlite3.connect(failed_job / "requests.sqlite")) as file, file:
        ((slot,),) = file.execute("SELECT name FROM slot")
        stored = Codec(None, 10**6).dump({"url": "http://example.com/page"}, slot, "pickle")
        change = "UPDATE request SET detail = ?, payload = ? WHERE id = 1"
        assert file.execute(change, (detail, stored.payload)).rowcount == 1
    found = run(failed_job, "failed", ".", "--json").json
    assert len(found) == MANY + 1
    (damaged,) = (each for each in found if each["reason"] == "unreadable")
    assert damaged["url"] == "http://example.com/page"
    assert damaged["exception"].startswith("the record of its failure is damaged")
    figures = run(failed_job, "top", ".", "--json").json
    assert figures["failed_by_reason"]["unreadable"] == 1
    assert run(failed_job, "retry", ".", "--json").json == {"retried": MANY + 1}


def test_a_place_without_a_crawl_is_refused(run, tmp_path, redis_server, key):
    """Without the password, which belongs to the URL."""
    for command in ("failed", "retry", "drop", "top"):
        refusal = run(tmp_path, command, redis_server.url, "--key", key).refusal
        assert f"there is no crawl {key!r}" in refusal


class UnpicklesNotError(Exception):
    """Pickles, and does not unpickle."""

    def __init__(self, one, other):
        super().__init__(one)


def test_a_request_that_cannot_be_read_back_is_listed(run, tmp_path):
    """As any other that has failed, with its reason."""
    crawl = Job(tmp_path / "job").open()
    crawl.push("good")
    crawl.push("bad", cb_kwargs={"error": UnpicklesNotError(1, 2)})
    crawl.close()
    crawl = Job(tmp_path / "job").open()
    assert crawl.names() == ["good"]
    crawl.close()
    told = run(tmp_path, "info", "job").fields
    assert told["pending"] == "0 requests"
    assert "1 failed request ('scrapy bloom failed')" in told["job"]
    listed = run(tmp_path, "failed", "job").lines
    assert listed[2] == "unreadable  1"
    assert "TypeError: " in listed[4]
    (found,) = run(tmp_path, "failed", "job", "--json").json
    assert (found["reason"], found["attempts"]) == ("unreadable", 1)


def test_a_running_job_gets_an_order(run, failed_job, monkeypatch):
    """Which stands until a command or a start carries it out; what has failed can be listed."""
    monkeypatch.setattr(orders, "PATIENCE", 0.1)
    with JobDirectory(failed_job).locked():
        for command in (["retry", "--reason", "callback"], ["drop", "--url", "*/1", "--yes"]):
            told = run(failed_job, command[0], ".", *command[1:])
            assert (told.status, told.out[:16]) == (0, "the order stands")
        assert len(run(failed_job, "failed", ".", "--json").json) == MANY + 1
    assert run(failed_job, "retry", ".", "--json").json == {"retried": MANY - 1}
    assert job_view(failed_job).unfinished == MANY
