"""BLOOM_EXACT: what a job does with it, and who refuses it."""

import logging
import os

import pytest
from scrapy import Request
from scrapy.utils.test import get_crawler

from scrapy_bloom import IncompatibleFilterError, RedisBloomDupeFilter, ScalableBloomFilter
from scrapy_bloom.redis.copying import load_into_redis
from scrapy_bloom.seen import closing_line
from tests.fakes import Engine
from tests.test_refused_start import contents

EXACT = {"BLOOM_EXACT": True, "BLOOM_ERROR_RATE": 0.9, "BLOOM_CAPACITY": 12_000}

job = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")


def verdicts(tested, start, stop):
    """Return whether the requests of these numbers were seen."""
    return [tested.request_seen(Request(f"http://example.com/{n}")) for n in range(start, stop)]


def test_no_page_is_lost(make_dupefilter):
    """In memory, at an error rate of 0.9: each new request is new, and the stats say what
    the table has saved."""
    tested = make_dupefilter(**EXACT)
    assert verdicts(tested, 0, 16_000) == [False] * 16_000
    assert verdicts(tested, 0, 16_000) == [True] * 16_000
    tested.close("finished")
    stats = tested.crawler.stats
    assert stats.get_value("bloom/items") == 16_000
    assert stats.get_value("bloom/false_positives_avoided") > 10
    assert stats.get_value("bloom/expected_false_positives") < 1e-9
    assert stats.get_value("bloom/error_rate") < 1e-15
    assert stats.get_value("bloom/table_bytes") > 9.4 * 16_000


@job
def test_job_keeps_its_mode(make_dupefilter, tmp_path):
    """One with a table has it without the setting, and without the error rate, too; one
    without is refused, with the reason and the remedy, and no file changes."""
    exact, plain = tmp_path / "exact", tmp_path / "plain"
    for folder, settings in ((exact, EXACT), (plain, {})):
        tested = make_dupefilter(JOBDIR=folder, **settings)
        verdicts(tested, 0, 12_000)
        tested.close("shutdown")
    tested = make_dupefilter(JOBDIR=exact, BLOOM_ERROR_RATE=0.9)
    assert verdicts(tested, 0, 14_000) == [True] * 12_000 + [False] * 2_000
    tested.close("finished")
    assert tested.crawler.stats.get_value("bloom/false_positives_avoided") > 5
    before = contents(plain)
    with pytest.raises(
        IncompatibleFilterError, match=r"plain/bloom has no exact table.*only their bits.*new job"
    ):
        make_dupefilter(JOBDIR=plain, BLOOM_EXACT=True)
    assert contents(plain) == before
    assert verdicts(make_dupefilter(JOBDIR=plain), 0, 12_000) == [True] * 12_000


@job
def test_requests_seen_is_imported_exactly(make_dupefilter, tmp_path):
    """A job of Scrapy's RFPDupeFilter goes on with a table."""
    scrapys = make_dupefilter(
        JOBDIR=tmp_path, ADDONS={}, DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter"
    )
    verdicts(scrapys, 0, 300)
    scrapys.close("finished")
    (tmp_path / "requests.queue").mkdir()
    (tmp_path / "requests.queue" / "active.json").write_text("{}")
    tested = make_dupefilter(JOBDIR=tmp_path, **EXACT)
    assert tested.filter.exact
    assert verdicts(tested, 0, 1_500) == [True] * 300 + [False] * 1_200


@job
def test_full_table_of_a_job_that_may_not_grow(make_dupefilter, tmp_path, next_turn):
    """The spider is closed at BLOOM_CAPACITY; what still comes is remembered, beyond the
    table in memory, and never taken for seen."""
    small = EXACT | {"BLOOM_CAPACITY": 100, "BLOOM_ON_FULL": "close"}
    tested = make_dupefilter(JOBDIR=tmp_path, **small)
    assert verdicts(tested, 0, 600) == [False] * 600
    assert verdicts(tested, 0, 600) == [True] * 600
    next_turn()
    tested.close("bloom_full")
    resumed = make_dupefilter(JOBDIR=tmp_path, **EXACT | {"BLOOM_CAPACITY": 1_000})
    known = sum(verdicts(resumed, 0, 600))
    assert known == int(8 * 63 * 0.95)


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
