"""Each command as a user who has the rights that the documents name, and no others."""

import re
from pathlib import Path

import pytest

from scrapy_bloom import load_into_redis
from scrapy_bloom.crawl.failed_request import FailedRequest
from tests.redis.workers import StoreWorker

pytest_plugins = ["tests.redis.fixtures"]

DOCS = Path(__file__).parents[2] / "docs"
URL = "http://example.com/1"


def rights(page):
    """Return the words of the ACL in a document, for a worker and for `scrapy bloom`."""
    text = (DOCS / page).read_text()
    block, more = re.search(
        r"ACL SETUSER worker on >password (.*?)```(.*?)(?:For seeds|To read a set)", text, re.DOTALL
    ).groups()
    return [*block.replace("\\\n", " ").split(), *re.findall(r"\+[a-z|]+", more)]


def user(server, page, key):
    """Return the URL for a user who may do what a document says, for crawls with `key`."""
    words = [word.replace("books:bloom", key) for word in rights(page)]
    server.command("ACL", "SETUSER", key, "reset", "on", ">password", *words)
    return f"redis://{key}:password@127.0.0.1:{server.port}/0"


@pytest.fixture
def crawl(redis_server, key):
    """The key of a crawl with a request that waits and one that has failed."""
    worker = StoreWorker(redis_server.url, key)
    for name in ("1", "2"):
        worker.enqueue(name)
    request = worker.next()
    worker.store.fail(request, FailedRequest(request.url, "GET", "callback", 200, "", 1, 0.0, ""))
    worker.exchange()
    worker.leave()
    return key


CRAWL_COMMANDS = {
    **dict.fromkeys(("info", "workers", "verify", "failed", "retry"), ()),
    "top": ["--once"],
    "check": [URL],
    "push": ["http://example.com/3"],
    "export": ["exported"],
    "drop": ["--yes"],
    "clear": ["--yes"],
}


@pytest.mark.parametrize("command", CRAWL_COMMANDS)
def test_commands_on_a_crawl(run, tmp_path, redis_server, crawl, command):
    """All of them find it by the BLOOM_REDIS_KEY of its workers."""
    url = user(redis_server, "workers.md", crawl)
    found = run(tmp_path, command, url, *CRAWL_COMMANDS[command], "--key", crawl)
    assert found.status == 0, found.error
    assert crawl in found.out or command not in {"info", "verify", "clear"}
    assert redis_server.names(f"{{{crawl}}}") == [] or command != "clear"


FILTER_COMMANDS = {"info": (), "verify": (), "check": [URL], "export": ["x"], "clear": ["--yes"]}


@pytest.mark.parametrize("command", FILTER_COMMANDS)
def test_commands_on_a_filter_alone(run, job, redis_server, key, command):
    """The same, where there is no queue."""
    load_into_redis(job / "bloom", redis_server.url, key)
    url = user(redis_server, "redis.md", key)
    found = run(job.parent, command, url, *FILTER_COMMANDS[command], "--key", key)
    assert found.status in {0, 1} if command == "check" else found.status == 0, found.error


@pytest.mark.parametrize(
    ("page", "scheduler"),
    [("redis.md", "scrapy.core.scheduler.Scheduler"), ("workers.md", "RedisDurableScheduler")],
)
def test_a_job_is_loaded(run, job, redis_server, key, page, scheduler):
    """Into a filter alone, and into a crawl."""
    if scheduler == "RedisDurableScheduler":
        scheduler = "scrapy_bloom.RedisDurableScheduler"
    options = ["-s", f"SCHEDULER={scheduler}", "-s", "BLOOM_CAPACITY=2000"]
    url = user(redis_server, page, key)
    found = run(job.parent, "load", "job", url, "--key", key, *options)
    assert found.status == 0, found.error
    assert redis_server.names(key)


def test_commands_on_a_filter_alone_in_a_cluster(run, job, redis_cluster, key):
    """Its shards are in many slots, and a queue is not looked for."""
    load_into_redis(job / "bloom", redis_cluster.url, key)
    for command, more in FILTER_COMMANDS.items():
        found = run(job.parent, command, redis_cluster.url, *more, "--key", key)
        assert found.status in {0, 1} if command == "check" else found.status == 0, found.error


def test_a_crawl_has_one_name(run, tmp_path, redis_server, crawl):
    """That of its workers; the name of its keys in Redis is none."""
    for command, more in CRAWL_COMMANDS.items():
        found = run(tmp_path, command, redis_server.url, *more, "--key", f"{{{crawl}}}")
        assert "give its BLOOM_REDIS_KEY, which has no braces" in found.refusal
