"""`scrapy bloom` on the queue of a crawl."""

import pytest

from tests.commands.command_line import bloom
from tests.distributed.workers import StoreWorker

pytest_plugins = ["tests.shared.fixtures"]


@pytest.fixture
def worker(redis_server, key):
    """A worker that has pushed nine requests, and has claimed some of them."""
    worker = StoreWorker(redis_server.url, key, capacity=2)
    for number in range(9):
        worker.enqueue(str(number), priority=number % 2, meta={"download_slot": "shop"})
    worker.exchange()
    worker.exchange()
    worker.next()
    worker.next()
    worker.store.done(worker.next())
    yield worker
    worker.close()


def test_info_and_workers_know_the_queue(run, tmp_path, redis_server, key, worker):
    """Pending by priority and slot, in flight by worker, what is done; as text and as JSON."""
    queue = run(tmp_path, "info", redis_server.url, "--key", key, "--json").json["queue"]
    (claimed,) = (each["claimed"] for each in queue["workers"])
    assert claimed == len(worker.store.held.claims)
    assert queue["pending"] == {"0": {"shop": 9 - claimed}}
    text = run(tmp_path, "info", redis_server.url, "--key", key).out
    assert f"{claimed} with 1 worker" in text
    assert f"priority 0: shop {9 - claimed}" in text
    listed = run(tmp_path, "workers", redis_server.url, "--key", key)
    assert worker.store.worker in listed.out
    assert (
        run(tmp_path, "workers", redis_server.url, "--key", key, "--json").json[0]["lease_left"] > 0
    )
    assert "no crawl" in run(tmp_path, "workers", redis_server.url, "--key", f"{key}x").refusal


def test_push_adds_what_is_new(tmp_path, redis_server, key, worker):
    """URLs on the command line and on standard input, with a priority and a callback; what
    the filter knows is left out, and without a crawl nothing is pushed."""
    arguments = ["push", redis_server.url, "http://example.com/1", "-", "--key", key]
    pushed = bloom(tmp_path, *arguments, "--priority", 9, stdin="http://example.com/seed\n")
    assert pushed.out == "pushed 1 request, 1 were seen before\n"
    found = []
    while (request := worker.next()) is not None:
        found.append((request.url, request.priority))
    assert ("http://example.com/seed", 9) in found
    arguments[-1] = f"{key}x"
    assert "there is no crawl" in bloom(tmp_path, *arguments).refusal


def test_clear_removes_all_of_a_crawl(run, tmp_path, redis_server, key, worker):
    """Filter and queue: no key is left, and the workers learn that it is gone."""
    assert redis_server.names(key)
    assert run(tmp_path, "clear", redis_server.url, "--key", key, "--yes").status == 0
    assert redis_server.names(key) == []
    worker.exchange()
    assert worker.is_gone
