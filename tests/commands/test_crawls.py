"""`scrapy bloom` on the queue of a crawl."""

import json
import re

import pytest

from scrapy_bloom.commands.top import lines
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.crawl.figures import Figures
from scrapy_bloom.crawl.stats import COUNTED
from scrapy_bloom.redis.status import CrawlStatus
from scrapy_bloom.sqlite.job_file import RequestFile
from scrapy_bloom.sqlite.status import JobStatus
from tests.redis.workers import StoreWorker

pytest_plugins = ["tests.redis.fixtures"]


@pytest.fixture
def worker(redis_server, key):
    """A worker that has pushed nine requests, and has claimed some of them."""
    worker = StoreWorker(redis_server.url, key, capacity=2)
    worker.store._counted = lambda: (12, 7, 3, 0)
    for number in range(9):
        worker.enqueue(str(number), priority=number % 2, meta={"download_slot": "shop"})
    worker.exchange()
    worker.exchange()
    worker.next()
    worker.next()
    worker.store.done(worker.next())
    yield worker
    worker.close()


def test_a_worker_has_the_same_figures_everywhere(there, worker):
    """In top, workers and info; and so has what the workers have counted."""
    figures, info = there("top", "--json").json, there("info", "--json").json["queue"]
    names = {"name", "in_flight", "oldest_seconds", "dispatched", "lease_seconds", "in_start"}
    for (each,) in (figures["workers"], there("workers", "--json").json, info["workers"]):
        assert each.keys() == names
        assert each["in_flight"] == 4
        assert each["dispatched"] > 0
        assert each["lease_seconds"] > 0
    for name in ("pages", "items", "duplicates", "retries", "pending_count", "in_flight"):
        assert figures[name] == info[name]


def test_help_explains_the_columns_of_workers(there, redis_server, key, worker):
    """Each of them, in 80 columns."""
    helped = there("workers", "--help")
    heads = there("workers").lines[0]
    for head in re.split(r"\s{2,}", heads)[1:]:
        assert re.search(rf"^  {re.escape(head)}  ", helped.out, re.M)
    assert helped.width <= 80


def test_push_adds_what_is_new(there, run, tmp_path, redis_server, worker):
    """From arguments and standard input, with a priority and a callback, what the filter lacks."""
    words = ["http://example.com/1", "-", "--priority", 9]
    pushed = there("push", *words, stdin="http://example.com/seed\n")
    assert pushed.out == "pushed 1 request, 1 were seen before\n"
    found = [(request.url, request.priority) for request in iter(worker.next, None)]
    assert ("http://example.com/seed", 9) in found
    other = ["push", redis_server.url, "http://example.com/1", "--key", "other"]
    assert "there is no crawl" in run(tmp_path, *other).refusal


def test_clear_removes_all_of_a_crawl(there, redis_server, key, worker):
    """Filter and queue: no key is left, and the workers learn that it is gone."""
    assert redis_server.names(key)
    assert there("clear", "--yes").status == 0
    assert redis_server.names(key) == []
    worker.exchange()
    assert worker.is_gone


def test_info_tells_how_far_the_crawl_is(there, redis_server, key, worker):
    """Its state, what is in flight and how long, its speed, its memory, and what has failed."""
    request = worker.next()
    worker.store.fail(request, FailedRequest.of(request, "download/timeout"))
    worker.exchange()
    info, claimed = there("info"), len(worker.store.claims.all)
    for expected in (
        "crawl      running, start() is through",
        "failed     1 requests: 1 download/timeout",
        f"{claimed} with 1 worker",
        f"priority 0: shop {7 - claimed}",
        "kB beside the filter",
        "oldest",
    ):
        assert expected in info.out
    assert worker.store.worker in info.out
    assert worker.store.worker in there("workers").out
    queue = there("info", "--json").json["queue"]
    assert queue["pending"] == {"0": {"shop": 7 - claimed}}
    assert queue["failed_by_reason"] == {"download/timeout": 1}
    assert queue["bytes"] > 1000
    (found,) = queue["workers"]
    assert 0 <= found["oldest_seconds"] < 60
    assert queue["pending_count"] + queue["in_flight"] + queue["failed"] + queue["done"] == 9


def test_info_counts_what_is_handed_out_alone(there, redis_server, key, worker):
    """Requests that were lost with two workers wait as the others do, in a list of their own."""
    before = there("info", "--json").json["queue"]["pending_count"]
    record = "cmsgpack.pack({'0', 'shop', '2x', 0})"
    redis_server.command(
        "EVAL", f"redis.call('RPUSH', KEYS[1], {record})", 1, f"{worker.key}:quarantined"
    )
    queue = there("info", "--json").json["queue"]
    assert (queue["pending_count"], queue["quarantined"]) == (before + 1, 1)


def test_verify_knows_the_queue(there, redis_server, key, worker):
    """While workers are at work, and when one is dead, whose claims come back."""
    result = there("verify")
    assert result.status == 0
    assert "each of 4 claimed ones has a worker" in result.out
    redis_server.command("ZADD", f"{worker.key}:workers", 1, worker.store.worker)
    assert "1 worker is dead" in there("verify").out
    redis_server.command("DEL", f"{worker.key}:crawl")
    assert there("verify").status == 0


@pytest.mark.parametrize(
    ("commands", "finding"),
    [
        (["DEL {k}:slots:0"], "no worker finds that list"),
        (["ZREM {k}:priorities 0"], "no worker finds that list"),
        (["RPUSH {k}:pending:0:shop x"], "1 request of 'pending:0:shop' cannot be read"),
        (["HSET {k}:failed 9 x"], "1 failed request cannot be read"),
        (["RPUSH {k}:quarantined x"], "1 quarantined request cannot be read"),
        (["HSET {k}:claims:{w} 9 x"], "1 claim of {w} cannot be read"),
        (["ZREM {k}:workers {w}"], "4 claims of {w}, which is none of the workers"),
        (["SADD {k}:starting ghost"], "1 worker at work without a lease"),
        (["SADD {k}:busy ghost"], "1 worker at work without a lease"),
        (["HSET {k}:crawl over 1"], "the crawl is over, but something waits"),
        (["HSET {k}:crawl id other"], "belongs to a filter that is gone"),
        (["ZADD {k}:workers 1 {w}", "LPOP {k}:pending:0:shop"], "1 request is gone"),
    ],
)
def test_verify_finds_what_is_wrong(there, redis_server, worker, commands, finding):
    """Each in one line."""
    names = {"k": worker.key, "w": worker.store.worker}
    for command in commands:
        redis_server.command(*(word.format(**names) for word in command.split()))
    result = there("verify")
    assert result.status == 2
    (line,) = [line for line in result.lines if line.startswith("BAD")]
    assert finding.format(**names) in line
    assert redis_server.url in line


def test_top_shows_a_crawl(there, redis_server, key, worker):
    """With what its workers have counted, and each of them; a crawl has no file and no log."""
    result = there("top", "--once")
    assert re.match(rf"running, for \S+ s  {redis_server.url} {key}$", result.lines[0])
    assert "in flight by worker" in result.out
    assert worker.store.worker in result.out
    (line,) = there("top", "--json").lines
    figures = json.loads(line)
    assert (figures["pages"], figures["items"]) == (12, 7)
    assert figures["pending"] + figures["in_flight"] == 9
    assert figures["pending_by_slot"] == {"shop": figures["pending"]}
    assert figures["filter_items"] == 9
    info = there("info", "--json").json
    assert figures["filter_capacity"] == info["capacity"] == 1000
    assert figures["memory_bytes"] > figures["filter_bytes"]
    (found,) = figures["workers"]
    assert found["lease_seconds"] > 0


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("height", [24, 40])
def test_the_view_fits_the_terminal(redis_server, worker, width, height):
    """All of it, with as many slots, reasons and workers as there may be."""
    figures = CrawlStatus(worker.client, worker.key).figures()
    figures["pending_by_slot"] = {f"{n}" * 200: 2_000_000 for n in range(9)}
    figures["failed_by_reason"] = {f"reason {n}": n for n in range(9)}
    figures["workers"] = [
        {**figures["workers"][0], "name": "w" * 99, "oldest_seconds": float(n)} for n in range(12)
    ]
    found = lines("redis://localhost/0 shop", figures, width, height)
    assert max(map(len, found)) <= width
    assert len(found) < height
    assert any("11 s" in line for line in found)


def test_a_job_and_a_crawl_have_the_same_figures(tmp_path, worker):
    """Under the same names, without those of files and of workers."""
    RequestFile.open(tmp_path / "requests.sqlite").close(clean=True)
    job = set(JobStatus(tmp_path).figures())
    crawl = set(CrawlStatus(worker.client, worker.key).figures())
    commits = {"commits", "commit_seconds_max", "seconds_since_commit"}
    of_round = {f"round_{name}" for name in COUNTED}
    assert job - crawl == {*commits, *of_round, "feeds", "file_bytes", "log_bytes"}
    assert crawl - job == {"memory_bytes", "workers"}
    assert job | crawl == set(Figures.__annotations__)


def test_a_crawl_that_rests_has_no_speed(redis_server, worker):
    """And what follows from it; what was counted stays."""
    watch = CrawlStatus(worker.client, worker.key)
    note = dict.fromkeys((*COUNTED, "pending", "failed", "done", "added"), 0) | {"time": 1}
    redis_server.command("RPUSH", f"{worker.key}:progress", json.dumps(note))
    assert watch.figures()["pages_per_second"] > 0
    worker.store.leave(over=False, seconds=1)
    figures = watch.figures()
    assert (figures["state"], figures["pages"]) == ("at rest", 12)
    assert figures["pages_per_second"] is figures["seconds_left"] is None


def test_a_user_without_the_right_to_ask_for_memory(own_server):
    """Is told that, and all the rest."""
    worker = StoreWorker(own_server.url, "crawl")
    worker.enqueue("page")
    worker.exchange()
    watch = CrawlStatus(worker.client, worker.key)
    own_server.command("ACL", "SETUSER", "default", "-memory")
    figures = watch.figures()
    assert (figures["memory_bytes"], figures["in_flight"]) == (None, 1)
    worker.close()
