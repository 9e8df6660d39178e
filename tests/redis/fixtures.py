"""Servers, keys and workers for the tests of what is in Redis."""

import logging
from itertools import count

import pytest
from scrapy import Request
from scrapy.utils.misc import build_from_crawler, load_object
from scrapy.utils.test import get_crawler

from scrapy_bloom.redis import copying, layout
from scrapy_bloom.redis import filter as filters
from scrapy_bloom.redis.client import RedisClient
from tests.crawl.engine import TestSpider
from tests.fakes import Engine
from tests.redis.server import Cluster, Server, missing
from tests.redis.workers import StoreWorker


def _of(kind, scope="function", **options):
    """Return a fixture of a server, which the tests of its scope share."""

    @pytest.fixture(scope=scope)
    def serve(tmp_path_factory):
        if reason := missing():
            pytest.skip(reason)
        with kind(tmp_path_factory.mktemp("redis"), **options) as server:
            yield server

    return serve


redis_server, redis_cluster = _of(Server, "session"), _of(Cluster, "session")
"""For tests that leave it as it was, apart from keys of their own; a Cluster of three nodes."""
own_server, own_cluster = _of(Server), _of(Cluster)
"""The same, which the test may harm."""
locked_server = _of(Server, requirepass="hush")


@pytest.fixture(params=["server", "cluster"])
def redis(request):
    return request.getfixturevalue(f"redis_{request.param}")


@pytest.fixture
def client(redis):
    """A connection to a server, and one to a Cluster."""
    with RedisClient(redis.url) as client:
        yield client


_keys = count()


@pytest.fixture
def key():
    """A key that nobody has used, nor one that begins with it."""
    return f"key{next(_keys)}."


@pytest.fixture
def few_shards(monkeypatch):
    """Filters of two shards: 64, of at least a block each, are full with 200,000 keys only."""
    for module in (layout, filters, copying):
        monkeypatch.setattr(module, "SHARDS", 2)
    monkeypatch.setattr(layout, "SHARD_BITS", 1)


@pytest.fixture
def join(redis_server, key, kept):
    """Return a function that makes a worker of the crawl at `key`."""

    def make(attempt=None, url=redis_server.url, **settings):
        worker = kept(StoreWorker(url, key, **settings))
        if attempt is not None:
            worker.sender._attempt = lambda arguments: attempt(worker, arguments)
        return worker

    return make


@pytest.fixture
def worker(join):
    """A worker of the crawl at `key`, the first one."""
    return join()


def open_scheduler(url, key, spider=TestSpider, **settings):
    """Return an open scheduler of the crawl at `key`, whose engine only keeps its books."""
    settings = {
        "ADDONS": {"scrapy_bloom.Addon": 300},
        "BLOOM_CAPACITY": 1000,
        "BLOOM_REDIS_URL": url,
        "BLOOM_REDIS_KEY": key,
        **settings,
    }
    crawler = get_crawler(spider, settings_dict=settings)
    crawler.engine = Engine()
    crawler.engine.scraper.logformatter = crawler.logformatter
    crawler.spider = spider.from_crawler(crawler)
    scheduler = build_from_crawler(load_object(crawler.settings["SCHEDULER"]), crawler)
    scheduler.open(crawler.spider)
    return scheduler


@pytest.fixture
def build(redis_server, key):
    """Return a function that builds and opens a scheduler with some settings."""
    opened = []

    def build(spider=TestSpider, **settings):
        scheduler = open_scheduler(redis_server.url, key, spider, **settings)
        opened.append(scheduler)
        return scheduler

    yield build
    for scheduler in opened:
        if scheduler.worker._transport._thread.is_alive():
            scheduler.close("shutdown")


def lone_worker(make_dupefilter, own, server=None, **settings):
    """Return the dupefilter of a worker that shares a filter alone, at `own` or another server."""
    shared = "scrapy_bloom.RedisBloomDupeFilter"
    url = (server or own).url
    return make_dupefilter(**{"DUPEFILTER_CLASS": shared, "BLOOM_REDIS_URL": url, **settings})


@pytest.fixture
def told(caplog):
    """Return a function that lists the WARNING and ERROR messages so far, or those of a level."""
    caplog.set_level(logging.INFO)
    return lambda least=logging.WARNING: [
        record.getMessage() for record in caplog.records if record.levelno >= least
    ]


def offer(tested, start, stop):
    urls = (f"http://example.com/{number}" for number in range(start, stop))
    return [tested.request_seen(Request(url)) for url in urls]


def keys(start, stop):
    return [b"%d" % number for number in range(start, stop)]
