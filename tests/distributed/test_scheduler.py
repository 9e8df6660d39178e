"""RedisDurableScheduler as Scrapy builds it: what it refuses, and what it leaves to the answer."""

import threading

import pytest
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.test import get_crawler

from scrapy_bloom import RedisDurableScheduler, SharedFilterError
from tests.distributed.workers import StoreWorker
from tests.durable.engine import TestSpider, request
from tests.fakes import Engine

pytest_plugins = ["tests.shared.fixtures"]


@pytest.fixture
def build(redis_server, key):
    """Return a function that builds and opens a scheduler with some settings."""
    opened = []

    def build(**settings):
        settings = {
            "ADDONS": {"scrapy_bloom.Addon": 300},
            "BLOOM_CAPACITY": 1000,
            "BLOOM_REDIS_URL": redis_server.url,
            "BLOOM_REDIS_KEY": key,
            **settings,
        }
        crawler = get_crawler(TestSpider, settings_dict=settings)
        crawler.engine = Engine()
        crawler.engine.scraper.logformatter = crawler.logformatter
        crawler.spider = TestSpider.from_crawler(crawler)
        scheduler = build_from_crawler(load_object(crawler.settings["SCHEDULER"]), crawler)
        scheduler.open(crawler.spider)
        opened.append(scheduler)
        return scheduler

    yield build
    for scheduler in opened:
        if scheduler._worker._link._thread.is_alive():
            scheduler.close("shutdown")


def talk(scheduler):
    """Let a scheduler whose reactor stands still send all it has, and have the answers."""
    link = scheduler._worker._link
    for _ in range(3):
        while not link.wait(5):
            pass
        scheduler._ledger.commit()
        if not link.busy:
            scheduler._worker.store._call()
    while not link.wait(5):
        pass


def test_a_url_is_enough(build):
    """With BLOOM_REDIS_URL the add-on has it built, and a request goes there and back."""
    scheduler = build()
    assert type(scheduler) is RedisDurableScheduler
    assert scheduler.has_pending_requests()
    assert scheduler.enqueue_request(request("page", callback=scheduler.spider.parse_other))
    assert not scheduler.enqueue_request(request("page"))
    talk(scheduler)
    popped = scheduler.next_request()
    assert (popped.url, popped.callback) == (request("page").url, scheduler.spider.parse_other)
    stats = scheduler.stats.get_stats()
    assert stats["scheduler/enqueued/redis"] == stats["scheduler/dequeued/redis"] == 1


def test_what_another_worker_has_seen_is_counted_when_the_answer_comes(build, redis_server, key):
    """enqueue_request says "perhaps new" before Redis was asked."""
    scheduler = build()
    other = StoreWorker(redis_server.url, key)
    other.enqueue("page")
    other.exchange()
    other.close()
    assert scheduler.enqueue_request(request("page"))
    assert scheduler.stats.get_value("dupefilter/filtered") is None
    talk(scheduler)
    assert scheduler.stats.get_value("dupefilter/filtered") == 1
    assert scheduler.stats.get_value("scheduler/enqueued") is None


def test_what_cannot_be_stored_lives_in_memory(build):
    """A request that cannot be serialized is handed out all the same, first."""
    scheduler = build()
    assert scheduler.enqueue_request(request("page", meta={"function": lambda: None}))
    assert scheduler.next_request().url == request("page").url
    assert scheduler.stats.get_value("scheduler/unserializable") == 1


def test_closing_leaves(build, redis_server, key):
    """A worker that has closed is not among the workers any more, and has no thread left."""
    before = threading.active_count()
    scheduler = build()
    talk(scheduler)
    workers = f"{{{key}}}:workers"
    assert redis_server.command("ZCARD", workers) == 1
    scheduler.close("finished")
    assert redis_server.command("ZCARD", workers) == 0
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"DUPEFILTER_CLASS": "scrapy_bloom.BloomDupeFilter"}, "set DUPEFILTER_CLASS to"),
        ({"BLOOM_REDIS_LEASE": 0}, "BLOOM_REDIS_LEASE is 0"),
        ({"BLOOM_REDIS_IDLE": -1}, "BLOOM_REDIS_IDLE is -1"),
        ({"BLOOM_REDIS_SLOT_WORKERS": 2}, "BLOOM_REDIS_SLOT_WORKERS is 2"),
        ({"BLOOM_REDIS_MAX_ATTEMPTS": 0}, "BLOOM_REDIS_MAX_ATTEMPTS is 0"),
        ({"BLOOM_REDIS_ON_ERROR": "local"}, "BLOOM_REDIS_ON_ERROR is 'local'"),
        ({"BLOOM_REPEAT_START": True}, "begin a new round with BLOOM_REDIS_ROUND"),
        ({"SCHEDULER_DISK_QUEUE": "queue.Queue"}, "SCHEDULER_DISK_QUEUE is queue.Queue"),
    ],
)
def test_bad_settings_are_refused(build, settings, message):
    """Each with its name, and nothing is left running."""
    before = threading.active_count()
    with pytest.raises(ValueError, match=message):
        build(SCHEDULER="scrapy_bloom.RedisDurableScheduler", **settings)
    assert threading.active_count() == before


def test_another_lease_is_refused(build):
    """All workers need the same."""
    talk(build(BLOOM_REDIS_LEASE=30))
    with pytest.raises(SharedFilterError, match="BLOOM_REDIS_LEASE = 30, and this one has 20"):
        build(BLOOM_REDIS_LEASE=20)
