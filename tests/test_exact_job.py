"""BLOOM_EXACT: what a job does with it, and who refuses it."""

import logging
import os

import pytest
from scrapy import Request
from scrapy.utils.test import get_crawler

from scrapy_bloom import IncompatibleFilterError, RedisBloomDupeFilter, ScalableBloomFilter
from scrapy_bloom.crawl.overlay import Keeper
from scrapy_bloom.redis.copying import load_into_redis
from scrapy_bloom.seen import closing_line
from tests.fakes import Engine

EXACT = {"BLOOM_EXACT": True, "BLOOM_ERROR_RATE": 0.9, "BLOOM_CAPACITY": 12_000}

job = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


def request(number):
    return Request(f"http://example.com/{number}")


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_no_page_is_lost(make_dupefilter):
    """In memory, at an error rate of 0.9: each new request is new, and the stats say what
    the table has saved."""
    tested = make_dupefilter(**EXACT)
    assert not any(tested.request_seen(request(number)) for number in range(16_000))
    assert all(tested.request_seen(request(number)) for number in range(16_000))
    tested.close("finished")
    stats = tested.crawler.stats
    assert stats.get_value("bloom/items") == 16_000
    assert stats.get_value("bloom/false_positives_avoided") > 10
    assert stats.get_value("bloom/expected_false_positives") < 1e-9
    assert stats.get_value("bloom/error_rate") < 1e-15
    assert stats.get_value("bloom/table_bytes") > 9.4 * 16_000


def test_other_filters_have_no_such_stats(make_dupefilter):
    """They avoid nothing."""
    tested = make_dupefilter()
    tested.request_seen(request(1))
    tested.close("finished")
    found = tested.crawler.stats.get_stats()
    assert not {"bloom/false_positives_avoided", "bloom/table_bytes"} & found.keys()


@pytest.mark.parametrize("value", [True, "True", "1", 1])
def test_setting_is_a_boolean(make_dupefilter, value):
    """As Scrapy reads one; anything else is refused by name."""
    assert make_dupefilter(BLOOM_EXACT=value).filter.exact
    assert not make_dupefilter(BLOOM_EXACT="False").filter.exact
    with pytest.raises(ValueError, match="BLOOM_EXACT is 'yes'"):
        make_dupefilter(BLOOM_EXACT="yes")


@job
def test_job_keeps_its_mode(make_dupefilter, tmp_path):
    """One with a table has it without the setting, and without the error rate, too; one
    without is refused, with the reason and the remedy, and no file changes."""
    exact, plain = tmp_path / "exact", tmp_path / "plain"
    for folder, settings in ((exact, EXACT), (plain, {})):
        tested = make_dupefilter(JOBDIR=folder, **settings)
        for number in range(12_000):
            tested.request_seen(request(number))
        tested.close("shutdown")
    tested = make_dupefilter(JOBDIR=exact, BLOOM_ERROR_RATE=0.9)
    assert all(tested.request_seen(request(number)) for number in range(12_000))
    assert not any(tested.request_seen(request(number)) for number in range(12_000, 14_000))
    tested.close("finished")
    assert tested.crawler.stats.get_value("bloom/false_positives_avoided") > 5
    before = contents(plain)
    with pytest.raises(
        IncompatibleFilterError, match=r"plain/bloom has no exact table.*only their bits.*new job"
    ):
        make_dupefilter(JOBDIR=plain, BLOOM_EXACT=True)
    assert contents(plain) == before
    tested = make_dupefilter(JOBDIR=plain)
    assert all(tested.request_seen(request(number)) for number in range(12_000))


@job
def test_requests_seen_is_imported_exactly(make_dupefilter, tmp_path):
    """A job of Scrapy's RFPDupeFilter goes on with a table."""
    scrapys = make_dupefilter(
        JOBDIR=tmp_path, ADDONS={}, DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter"
    )
    for number in range(300):
        scrapys.request_seen(request(number))
    scrapys.close("finished")
    (tmp_path / "requests.queue").mkdir()
    (tmp_path / "requests.queue" / "active.json").write_text("{}")
    tested = make_dupefilter(JOBDIR=tmp_path, **EXACT)
    assert tested.filter.exact
    assert all(tested.request_seen(request(number)) for number in range(300))
    assert not any(tested.request_seen(request(number)) for number in range(300, 1_500))


@job
def test_full_table_of_a_job_that_may_not_grow(make_dupefilter, tmp_path, next_turn):
    """The spider is closed at BLOOM_CAPACITY; what still comes is remembered, beyond the
    table in memory, and never taken for seen."""
    small = EXACT | {"BLOOM_CAPACITY": 100, "BLOOM_ON_FULL": "close"}
    tested = make_dupefilter(JOBDIR=tmp_path, **small)
    assert not any(tested.request_seen(request(number)) for number in range(600))
    assert all(tested.request_seen(request(number)) for number in range(600))
    next_turn()
    tested.close("bloom_full")
    resumed = make_dupefilter(JOBDIR=tmp_path, **EXACT | {"BLOOM_CAPACITY": 1_000})
    known = sum(resumed.request_seen(request(number)) for number in range(600))
    assert known == int(8 * 63 * 0.95)


def test_held_requests_count_once(make_dupefilter):
    """What a durable scheduler holds back and releases is avoided once."""
    tested = make_dupefilter(**EXACT)
    keeper = Keeper(tested, requests_survive=True)
    for number in range(12_000):
        assert not tested.request_seen(request(number))
    held = list(keeper.uncommitted)
    assert len(held) == 12_000
    assert tested.filter.false_positives_avoided == 0
    keeper.release(held)
    assert 10 < tested.filter.false_positives_avoided < 6_000
    assert all(tested.request_seen(request(number)) for number in range(12_000))


def test_redis_is_refused_by_name(caplog, tmp_path):
    """Its filter has no table, and gets none from a job that has one."""
    settings = {"DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter", "BLOOM_EXACT": True}
    crawler = get_crawler(settings_dict=settings)
    crawler.engine = Engine()
    crawler.spider = crawler.spidercls.from_crawler(crawler, "spider")
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(ValueError, match=r"BLOOM_EXACT is True, and a filter in Redis has no"),
    ):
        RedisBloomDupeFilter.from_crawler(crawler)


@job
def test_exact_filter_is_not_loaded_into_redis(tmp_path):
    """Its bits alone would make it lose pages."""
    ScalableBloomFilter(100, 0.5, tmp_path / "bloom", exact=True).close()
    with pytest.raises(IncompatibleFilterError, match=r"is exact \(BLOOM_EXACT\), and a filter in"):
        load_into_redis(tmp_path / "bloom", "redis://localhost:1/0", "key")


def test_closing_line_names_the_table():
    """Memory is that of the bits; the table is on the disk."""
    tested = ScalableBloomFilter(1000, 1e-6, exact=True)
    tested.update(map(str, range(800)))
    assert closing_line(tested, 1000, finished=True) == (
        "The filter knows 800 requests; pages probably lost: none; memory: 4.1 kB, and an exact"
        " table of 12.3 kB."
    )
