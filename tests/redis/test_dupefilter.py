"""What RedisBloomDupeFilter has beside the contract of dupefilters, and for scrapy-redis."""

import gzip
import json
from functools import partial
from pathlib import Path

import pytest
from scrapy import Request, signals
from scrapy.exceptions import ScrapyDeprecationWarning
from scrapy.settings import Settings
from scrapy.utils.test import get_crawler

from scrapy_bloom import IncompatibleFilterError, JobDirectoryError, RedisBloomDupeFilter
from scrapy_bloom.errors import SharedFilterError
from scrapy_bloom.redis.settings import RedisSettings
from tests.fingerprinters import HeaderFingerprinter
from tests.redis.fixtures import lone_worker, offer
from tests.redis.workers import StoreWorker

DATA = Path(__file__).resolve().parent.parent / "data"


@pytest.fixture
def worker(make_dupefilter, redis_server, key):
    """Return a function that makes the dupefilter of a worker."""
    return partial(lone_worker, make_dupefilter, redis_server, BLOOM_REDIS_KEY=key)


def test_stream_gets_scrapys_verdicts(worker, redis_server):
    """With one round trip for each new request and hardly one for the others."""
    urls = gzip.decompress((DATA / "stream_postgresql15.txt.gz").read_bytes()).decode()
    verdicts = gzip.decompress((DATA / "stream_postgresql15.verdict.gz").read_bytes()).decode()
    tested = worker()
    before = redis_server.calls()["evalsha"]
    answers = [tested.request_seen(Request(url)) for url in urls.rstrip("\n").split("\n")]
    assert "".join("01"[seen] for seen in answers) == verdicts
    assert redis_server.calls()["evalsha"] - before == verdicts.count("0")


def test_two_workers_share_what_they_have_seen(worker):
    """What one worker was offered is seen by the other, and the stats at its close tell of both."""
    one, other = worker(), worker()
    assert offer(one, 0, 1_000) == [False] * 1_000
    assert offer(other, 500, 2_000) == [True] * 500 + [False] * 1_000
    assert offer(one, 0, 1_100) == [True] * 1_100
    one.close("finished")
    stats = one.crawler.stats.get_stats()
    assert (stats["bloom/items"], stats["bloom/layers"]) == (2_000, 1)
    assert stats["bloom/bytes"] == pytest.approx(4e6, rel=0.1)
    assert 0 < stats["bloom/fill_ratio"] < 0.01
    assert 0 < stats["bloom/error_rate"] < 1e-6
    assert 0 < stats["bloom/expected_false_positives"] < 1e-3
    assert "bloom/outages" not in stats


def test_a_full_filter_closes_the_spider(worker, next_turn, caplog):
    """With BLOOM_ON_FULL "close", of the worker that has filled it; "grow", the remedy, goes on.
    What is over it stays in memory, also of a worker that comes later, until it is cleared."""
    join = partial(worker, BLOOM_CAPACITY=100, BLOOM_ON_FULL="close")
    one, other = join(), join()
    offer(one, 0, 60)
    offer(other, 60, 100)
    one._shared.refresh()
    offer(one, 100, 110)
    next_turn()
    assert one.crawler.engine.closed == ["bloom_full"]
    assert "Set BLOOM_ON_FULL to 'grow'" in caplog.text
    assert offer(one, 0, 111) == [True] * 110 + [False]
    one.close("bloom_full")
    assert one.crawler.stats.get_value("bloom/layers") == 1
    assert "10 requests are not in the filter" in caplog.text
    late = join()
    assert offer(late, 100, 110) + offer(late, 100, 110) == [True] + [False] * 9 + [True] * 10
    next_turn()
    outages = late.crawler.stats.get_value("bloom/outages")
    assert (late.crawler.engine.closed, outages) == (["bloom_full"], None)
    grown = worker(BLOOM_CAPACITY=100)
    assert offer(grown, 0, 3_000) == [True] * 101 + [False] * 2_899
    assert len(grown._shared.layers) > 1
    late.clear()
    assert offer(late, 0, 10) + offer(join(), 0, 11) == [False] * 10 + [True] * 10 + [False]


def test_another_fingerprinter_is_refused(worker, key):
    """Both fingerprinters and the remedy are named."""
    worker().close("finished")
    words = r"RequestFingerprinter.*, now it is .*HeaderFingerprinter.*another BLOOM_REDIS_KEY.*"
    with pytest.raises(IncompatibleFilterError, match=words + key):
        worker(REQUEST_FINGERPRINTER_CLASS=HeaderFingerprinter)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"BLOOM_REDIS_KEY": "a{b}"}, r"BLOOM_REDIS_KEY is 'a\{b\}'.*braces"),
        ({"BLOOM_REDIS_TIMEOUT": "0"}, "BLOOM_REDIS_TIMEOUT is '0'.*above 0"),
        ({"BLOOM_REDIS_ON_ERROR": "panic"}, r"BLOOM_REDIS_ON_ERROR is 'panic'.*'wait' or 'close'"),
        ({"BLOOM_REDIS_URL": 6379}, "BLOOM_REDIS_URL is a int: it must be text"),
        ({"BLOOM_CAPACITY": 10**10}, "BLOOM_CAPACITY is 10000000000: .* limit"),
        ({"BLOOM_EXACT": True}, "BLOOM_EXACT is True, and a filter in Redis has no"),
    ],
)
def test_bad_settings_are_refused(worker, settings, message):
    """The message names the setting, the value and what is allowed."""
    with pytest.raises(ValueError, match=message):
        worker(**settings)


@pytest.mark.parametrize("name", ["bloom", "requests.seen"])
def test_a_job_with_a_memory_of_its_own_is_refused(worker, tmp_path, redis_server, key, name):
    """Unless its filter was loaded into Redis; nothing is made."""
    (tmp_path / name).touch()
    with pytest.raises(JobDirectoryError, match=f"holds {name}.*load_into_redis"):
        worker(JOBDIR=tmp_path)
    assert redis_server.names(key) == []
    worker().close("finished")
    offer(worker(JOBDIR=tmp_path), 0, 10)


# settings


@pytest.mark.parametrize(
    ("settings", "url"),
    [
        ({}, "redis://localhost:6379/0"),
        ({"REDIS_URL": "redis://a", "BLOOM_REDIS_URL": "redis://b"}, "redis://b"),
        ({"REDIS_HOST": "c", "REDIS_PORT": 1}, "redis://c:1/0"),
        ({"REDIS_DB": 3}, "redis://localhost:6379/3"),
        ({"REDIS_HOST": "::1"}, "redis://[::1]:6379/0"),
        ({"REDIS_PARAMS": {"host": "c", "db": 2}, "REDIS_HOST": "d"}, "redis://d:6379/2"),
        ({"REDIS_PARAMS": '{"url": "redis://a"}'}, "redis://a"),
        ({"REDIS_PARAMS": {"unix_socket_path": "/a b"}}, "unix:///a%20b?db=0"),
        ({"REDIS_URL": "unix:///a/b", "REDIS_DB": 3}, "unix:///a/b?db=3"),
        ({"REDIS_URL": "unix:///a/b?db=2", "REDIS_DB": 3}, "unix:///a/b?db=2"),
        ({"REDIS_PARAMS": {"socket_timeout": 9}}, "redis://localhost:6379/0"),
        ({"REDIS_URL": "redis://a/2", "REDIS_DB": 3}, "redis://a/2"),
        ({"REDIS_URL": "redis://a", "REDIS_DB": 3}, "redis://a?db=3"),
        (
            {"REDIS_PARAMS": {"host": "c", "password": "p@ ss", "username": "u"}},
            "redis://c:6379/0?password=p%40+ss&username=u",
        ),
        (
            {"REDIS_PARAMS": {"ssl": True, "ssl_check_hostname": False}, "REDIS_HOST": "h"},
            "rediss://h:6379/0?ssl_check_hostname=False",
        ),
    ],
)
def test_the_server_is_scrapy_rediss_unless_another_one_is_set(settings, url):
    """Where scrapy-redis is set up, nothing more is needed."""
    assert RedisSettings.read(Settings(settings), "x").url == url


@pytest.mark.parametrize("name", ["redis_cls", "connection_pool", "credential_provider"])
def test_parameters_that_no_url_can_say_are_refused(name):
    """They are not left out in silence: another server would be used."""
    settings = Settings({"REDIS_PARAMS": {name: "x"}})
    with pytest.raises(ValueError, match=f"REDIS_PARAMS has '{name}'.*set BLOOM_REDIS_URL"):
        RedisSettings.read(settings, "x")
    settings.set("BLOOM_REDIS_URL", "redis://a")
    assert RedisSettings.read(settings, "x").url == "redis://a"


def test_the_key_has_the_spiders_name():
    """By default each spider has a filter of its own; with one key, spiders share."""
    default, own = Settings(), Settings({"BLOOM_REDIS_KEY": "%(spider)s-%"})
    asked = [(default, "books"), (default, "odd {name}"), (own, "books")]
    found = [RedisSettings.read(*each).key for each in asked]
    assert found == ["books:bloom", "odd (name):bloom", "books-%"]


# scrapy-redis's ways


@pytest.fixture
def spider(redis_server, key):
    """A spider that scrapy-redis's scheduler hands to `from_spider`."""
    where = {"BLOOM_REDIS_URL": redis_server.url, "BLOOM_REDIS_KEY": key}
    crawler = get_crawler(settings_dict={**where, "SCHEDULER_PERSIST": True})
    crawler.settings.frozen = False
    crawler.spider = crawler.spidercls.from_crawler(crawler, "spider")
    return crawler.spider


@pytest.mark.parametrize("persist", [True, False])
def test_from_spider_opens_and_signals_close(spider, recwarn, caplog, persist):
    """It is open at once, is true, counts in `log` as Scrapy's does, and writes its stats at the
    close. It warns that without SCHEDULER_PERSIST the first worker to finish clears the filter."""
    spider.settings.set("SCHEDULER_PERSIST", persist)
    tested, stats = RedisBloomDupeFilter.from_spider(spider), spider.crawler.stats
    assert ("SCHEDULER_PERSIST is not set" in caplog.text) == (not persist)
    assert tested
    assert offer(tested, 0, 10) == [False] * 10
    assert stats.get_value("bloom/items") == 0
    tested.log(Request("http://example.com/"), spider)
    assert stats.get_value("dupefilter/filtered") == 1
    assert not [w for w in recwarn if issubclass(w.category, ScrapyDeprecationWarning)]
    spider.crawler.signals.send_catch_log(signals.spider_closed, reason="finished")
    assert stats.get_value("bloom/items") == 10


def test_from_spider_takes_the_spider_it_is_given(spider, redis_server):
    """The key has that spider's name, whatever the crawler's spider is by then."""
    spider.settings.set("BLOOM_REDIS_KEY", "of %(spider)s")
    for other in (None, spider.crawler.spider):
        spider.crawler.spider = other
        given = spider.crawler.spidercls.from_crawler(spider.crawler, f"given {other}")
        RedisBloomDupeFilter.from_spider(given).close("finished")
        assert f"of {given.name}" in redis_server.names("of ")


def test_clear_deletes_and_the_next_request_starts_anew(spider, redis_server, key):
    """As scrapy-redis does at the start with SCHEDULER_FLUSH_ON_START."""
    tested = RedisBloomDupeFilter.from_spider(spider)
    offer(tested, 0, 10)
    tested.clear()
    assert redis_server.names(key) == []
    assert offer(tested, 0, 10) + offer(tested, 0, 10) == [False] * 10 + [True] * 10
    other = RedisBloomDupeFilter.from_spider(spider)
    offer(other, 10, 20)
    other.close("finished")
    tested.clear()
    spider.crawler.signals.send_catch_log(signals.spider_closed, reason="finished")
    assert spider.crawler.stats.get_value("bloom/items") == 20
    assert redis_server.names(key) == []


def test_clear_without_a_server_is_an_error_line(worker, own_server, caplog):
    """With Redis gone, clearing says so and raises nothing."""
    tested = worker(BLOOM_REDIS_URL=own_server.url, BLOOM_REDIS_TIMEOUT=0.3)
    own_server.stop()
    tested.clear()
    assert "Cannot clear the filter: Redis at" in caplog.text
    with pytest.raises(SharedFilterError):
        tested._shared.refresh()


@pytest.mark.parametrize("beside_queue", [False, True])
def test_an_audit_records_what_is_dropped(worker, redis_server, key, tmp_path, beside_queue):
    """The answers are the same, and a closed dupefilter has one, too."""
    options = {"BLOOM_AUDIT": str(tmp_path / "dropped.jsonl"), "BLOOM_URL_CACHE": 0}
    if beside_queue:
        tested = StoreWorker(redis_server.url, key, **options).dupefilter
    else:
        tested = worker(**options)
    request = Request("http://example.com/")
    assert [tested.request_seen(request.copy()) for _ in range(3)] == [False, True, True]
    dropped = map(json.loads, (tmp_path / "dropped.jsonl").read_text().splitlines())
    assert [each["reason"] for each in dropped] == ["held" if beside_queue else "filter"] * 2
    tested.close("finished")
    assert tested.request_seen(request) is False
