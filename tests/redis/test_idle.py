"""When a crawl ends whose spider has a handler of spider_idle: real workers, a real server."""

import json

import pytest

from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.layout import in_one_slot
from scrapy_bloom.redis.status import CrawlReader
from tests.processes import PACKAGE, run


@pytest.fixture
def crawl(redis_server, key):
    """Return a function that runs a worker for each way to be idle, and says how the crawl is."""

    def crawl(*how):
        module = ["-m", "tests.redis.fed_crawl", redis_server.url, key, *how]
        done = run(module, cwd=PACKAGE, text=True)
        assert "Traceback" not in done.stderr, done.stderr
        with RedisClient(redis_server.url) as client:
            state = CrawlReader(client, in_one_slot(key)).look().state
        return json.loads(done.stdout) | {"state": state}

    return crawl


def test_a_handler_that_closes_for_its_own_reason_ends_the_crawl(crawl):
    """Also where something else closes another worker meanwhile."""
    first = crawl("own_reason", "stop")
    assert first == {
        "fetched": ["start"],
        "reasons": ["own reason", "closespider_timeout"],
        "state": "finished",
    }
    assert crawl("feed")["reasons"] == ["bloom_over"]


@pytest.mark.parametrize(
    ("how", "reason"),
    [(("interrupt", "wait"), "shutdown"), (("stop", "stop"), "closespider_timeout")],
)
def test_a_worker_that_something_else_closes_does_not_end_the_crawl(crawl, how, reason):
    """Nothing is left but what the handler would give, which the next start gets from it."""
    stopped = crawl(*how)
    assert stopped == {"fetched": ["start"], "reasons": [reason] * 2, "state": "at rest"}
    last = crawl("feed")
    assert last == {"fetched": ["fed"], "reasons": ["own reason"], "state": "finished"}
