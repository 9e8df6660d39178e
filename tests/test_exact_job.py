"""BLOOM_EXACT: what a job does with it, and who refuses it."""

import os

import pytest

from scrapy_bloom import IncompatibleFilterError, ScalableBloomFilter
from scrapy_bloom.redis.copying import load_into_redis
from scrapy_bloom.seen import closing_line
from tests.redis.fixtures import offer
from tests.test_refused_start import contents

pytestmark = pytest.mark.skipif(os.name != "posix", reason="JOBDIR needs Linux or macOS")

EXACT = {"BLOOM_EXACT": True, "BLOOM_ERROR_RATE": 0.9, "BLOOM_CAPACITY": 2_000}


@pytest.mark.parametrize("name", ["", "exact"])
def test_no_page_is_lost(make_dupefilter, tmp_path, name):
    """At an error rate of 0.9 each new request is new, and the stats say what the table has saved;
    a job that has one keeps it without the setting, and without the error rate, too."""
    place = {"JOBDIR": name and tmp_path / name}
    tested = make_dupefilter(**place, **EXACT)
    assert offer(tested, 0, 16_000) == [False] * 16_000
    assert offer(tested, 0, 16_000) == [True] * 16_000
    tested.close("finished")
    stats = tested.crawler.stats
    assert stats.get_value("bloom/items") == 16_000
    assert stats.get_value("bloom/false_positives_avoided") > 10
    assert stats.get_value("bloom/expected_false_positives") < 1e-9
    assert stats.get_value("bloom/error_rate") < 1e-15
    assert stats.get_value("bloom/table_bytes") > 9.4 * 16_000
    if name:
        tested = make_dupefilter(**place, BLOOM_ERROR_RATE=0.9)
        assert offer(tested, 14_000, 18_000) == [True] * 2_000 + [False] * 2_000
        assert tested.filter.exact


def test_a_job_without_a_table_gets_none(make_dupefilter, tmp_path):
    """It is refused, with the reason and the remedy, and no file changes."""
    make_dupefilter(JOBDIR=tmp_path).close("shutdown")
    before = contents(tmp_path)
    words = r"/bloom has no exact table.*only their bits.*new job"
    with pytest.raises(IncompatibleFilterError, match=words):
        make_dupefilter(JOBDIR=tmp_path, BLOOM_EXACT=True)
    assert contents(tmp_path) == before


def test_requests_seen_is_imported_exactly(make_dupefilter, tmp_path):
    """A job of Scrapy's RFPDupeFilter goes on with a table."""
    scrapys = make_dupefilter(
        JOBDIR=tmp_path, ADDONS={}, DUPEFILTER_CLASS="scrapy.dupefilters.RFPDupeFilter"
    )
    offer(scrapys, 0, 300)
    scrapys.close("finished")
    (tmp_path / "requests.queue").mkdir()
    (tmp_path / "requests.queue" / "active.json").write_text("{}")
    tested = make_dupefilter(JOBDIR=tmp_path, **EXACT)
    assert tested.filter.exact
    assert offer(tested, 0, 1_500) == [True] * 300 + [False] * 1_200


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
