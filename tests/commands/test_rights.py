"""Each command as a user who has the rights that the documents name, and no others."""

import pytest

from scrapy_bloom import load_into_redis

FILTER_COMMANDS = ["info", "verify", "check http://example.com/1", "export exported", "clear --yes"]
CRAWL_COMMANDS = ["workers", "failed", "retry", "top --once", "push http://example.com/3"]
CRAWL_COMMANDS += ["drop --yes", "queue count", "queue hold a", "queue drop --slot * --yes"]
CRAWL_COMMANDS += FILTER_COMMANDS
FILTER_ALONE, CRAWL = "scrapy.core.scheduler.Scheduler", "scrapy_bloom.RedisDurableScheduler"


def run_at(run, folder, command, url, key):
    """Run a command on what `key` names at that URL."""
    name, *words = command.split()
    action = [words.pop(0)] if name == "queue" else []
    return run(folder, name, *action, url, *words, "--key", key)


def test_commands_on_a_crawl(run, worker, tmp_path, redis_server, key):
    """All find it by its workers' BLOOM_REDIS_KEY; the name of its keys in Redis is none."""
    worker.send("12")
    worker.fail(worker.next())
    worker.exchange()
    worker.leave()
    url = redis_server.user("workers.md", key)
    for command in CRAWL_COMMANDS:
        refused = run_at(run, tmp_path, command, url, worker.key).refusal
        assert "give its BLOOM_REDIS_KEY, which has no braces" in refused
        found = run_at(run, tmp_path, command, url, key)
        assert found.status == 0, (command, found.error)
        assert key in found.out or command not in {"info", "verify", "clear --yes"}
    assert redis_server.names(worker.key) == []


@pytest.mark.parametrize("kind", ["server", "cluster"])
def test_commands_on_a_filter_alone(run, job, request, key, kind):
    """The same, where there is no queue; in a Cluster its shards are in many slots."""
    server = request.getfixturevalue(f"redis_{kind}")
    load_into_redis(job / "bloom", server.url, key)
    url = server.url if kind == "cluster" else server.user("redis.md", key)
    for command in FILTER_COMMANDS:
        found = run_at(run, job.parent, command, url, key)
        assert found.status == command.startswith("check"), found.error


@pytest.mark.parametrize(("page", "scheduler"), [("redis.md", FILTER_ALONE), ("workers.md", CRAWL)])
def test_a_job_is_loaded(run, job, redis_server, key, page, scheduler):
    """Into a filter alone, and into a crawl."""
    options = ["-s", f"SCHEDULER={scheduler}", "-s", "BLOOM_CAPACITY=2000"]
    url = redis_server.user(page, key)
    found = run(job.parent, "load", "job", url, "--key", key, *options)
    assert found.status == 0, found.error
    assert redis_server.names(key)
