"""`scrapy bloom` on the queue of a crawl."""

import json
import re

import pytest

from scrapy_bloom.crawl.failed_request import FailedRequest


@pytest.fixture
def worker(join):
    """A worker that has pushed nine requests, and has claimed some of them."""
    worker = join(capacity=2)
    worker.store._counted = lambda: (12, 7, 3, 0)
    for number in range(9):
        worker.enqueue(str(number), priority=number % 2, slot="shop")
    worker.exchange()
    worker.exchange()
    worker.next()
    worker.next()
    worker.store.done(worker.next())
    return worker


def test_a_crawl_has_the_same_figures_everywhere(there, redis_server, worker):
    """In top, workers and info: what the workers have counted, and each of them. What was lost with
    two workers waits as others do, in a list of its own."""
    record = "cmsgpack.pack({'0', 'shop', '2x', 0})"
    lost = f"redis.call('RPUSH', KEYS[1], {record})"
    redis_server.command("EVAL", lost, 1, f"{worker.key}:quarantined")
    redis_server.command("HINCRBY", f"{worker.key}:crawl", "waiting", 1)
    (line,) = there("top", "--json").lines
    figures, described = json.loads(line), there("info", "--json").json
    info = described["queue"]
    names = {"name", "in_flight", "oldest_seconds", "dispatched", "lease_seconds", "in_start"}
    for (each,) in (figures["workers"], there("workers", "--json").json, info["workers"]):
        assert each.keys() == names
        assert each["in_flight"] == 4
        assert min(each["dispatched"], each["lease_seconds"]) > 0
    for name in ("pages", "items", "duplicates", "retries", "pending_count", "in_flight"):
        assert figures[name] == info[name]
    assert (figures["pages"], figures["items"], info["quarantined"]) == (12, 7, 1)
    assert figures["pending"] + figures["in_flight"] == 9 + 1
    assert figures["pending_by_slot"] == {"shop": figures["pending"] - 1}
    assert figures["filter_items"] == 9
    assert figures["filter_capacity"] == described["capacity"] == 1000
    assert figures["memory_bytes"] > figures["filter_bytes"]
    text = there("top", "--once")
    assert re.match(rf"running, for \S+ s  {redis_server.url} {worker.key[1:-1]}$", text.lines[0])
    assert "in flight by worker" in text.out
    for shown in (text, there("info"), there("workers")):
        assert worker.store.worker in shown.out


def test_help_explains_the_columns_of_workers(there, worker):
    """Each of them, in 80 columns."""
    helped = there("workers", "--help")
    for head in re.split(r"\s{2,}", there("workers").lines[0])[1:]:
        assert re.search(rf"^  {re.escape(head)}  ", helped.out, re.M)
    assert helped.width <= 80


def test_push_adds_what_is_new(there, worker):
    """From arguments and standard input, with a priority and a callback, what the filter lacks."""
    words = ["http://example.com/1", "-", "--priority", 9]
    pushed = there("push", *words, stdin="http://example.com/seed\n")
    assert pushed.out == "pushed 1 request, 1 were seen before\n"
    found = [(request.url, request.priority) for request in iter(worker.next, None)]
    assert ("http://example.com/seed", 9) in found


def test_info_tells_how_far_the_crawl_is(there, worker):
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
    queue = there("info", "--json").json["queue"]
    assert queue["pending"] == {"0": {"shop": 7 - claimed}}
    assert queue["failed_by_reason"] == {"download/timeout": 1}
    assert queue["bytes"] > 1000
    assert 0 <= queue["workers"][0]["oldest_seconds"] < 60
    assert queue["pending_count"] + queue["in_flight"] + queue["failed"] + queue["done"] == 9


def test_verify_knows_the_queue(there, redis_server, worker):
    """While workers are at work, when one is dead, whose claims come back, and what is wrong."""
    result = there("verify")
    assert (result.status, "each of 4 claimed ones has a worker" in result.out) == (0, True)
    redis_server.command("SADD", f"{worker.key}:busy", "ghost")
    result = there("verify")
    (line,) = [line for line in result.lines if line.startswith("BAD")]
    assert result.status == 2
    assert f"{redis_server.url} {worker.key}:crawl: 1 worker at work without a lease" in line
    redis_server.command("SREM", f"{worker.key}:busy", "ghost")
    redis_server.command("ZADD", f"{worker.key}:workers", 1, worker.store.worker)
    assert "1 worker is dead" in there("verify").out
