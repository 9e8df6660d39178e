"""Figures for people, the closing line, sizes before the crawl, and charts."""

import sys
import tracemalloc
from hashlib import sha1

import pytest
from scrapy import Request

from scrapy_bloom import BloomFilter, ScalableBloomFilter
from scrapy_bloom.reporting import closing_line, in_bytes, pages, round_up
from scrapy_bloom.study.planning import _table_bytes, plan, set_bytes
from scrapy_bloom.study.plots import draw, error_rate


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (4_014_080, "4.01 MB"), (999_999, "1 MB"),
     (10.7e9, "10.7 GB"), (5e15, "5e+03 TB")],
)  # fmt: skip
def test_bytes_have_units(number, text):
    """Three digits, decimal units."""
    assert in_bytes(number) == text


def test_pages_and_rounding_are_readable():
    """Few digits, thousands separated, no false precision."""
    assert [pages(n) for n in (0, 1e-12, 0.00123, 3.4, 1234.5)] == [
        "none", "none", "about 0.001", "about 3", "about 1,234",
    ]  # fmt: skip
    assert [round_up(n) for n in (1, 99, 101, 1_100_000, 1_210_001)] == [
        1, 99, 110, 1_100_000, 1_300_000,
    ]  # fmt: skip


def filled(capacity, count, error_rate=1e-6):
    bloom_filter = ScalableBloomFilter(capacity, error_rate)
    bloom_filter.update(str(n) for n in range(count))
    return bloom_filter


def test_closing_line_says_how_it_went():
    """Items, fill, error rate now and bound, pages lost and memory, and no advice where the
    capacity was right."""
    line = closing_line(filled(1000, 800), 1000, finished=True)
    assert "knows 800 requests, in 1 layer for 1,000:" in line
    assert "% of its bits are set" in line
    assert "(at most 1e-06)" in line
    assert "probably lost so far: none" in line
    assert line.endswith("memory: 4.1 kB.")


def test_closing_line_names_a_better_capacity():
    """A filter that has grown, or is far too large when the crawl is finished."""
    grown = closing_line(filled(1000, 5000), 1000, finished=False)
    assert "in 3 layers" in grown
    assert "It has grown: a crawl of this size takes" in grown
    assert grown.endswith("with BLOOM_CAPACITY = 5_500.")
    large = filled(50_000_000, 1000)
    line = closing_line(large, 50_000_000, finished=True)
    assert line.endswith("It is far too large: a crawl of this size takes 8.19 kB with"
                         " BLOOM_CAPACITY = 1_100.")  # fmt: skip
    assert "far too large" not in closing_line(large, 50_000_000, finished=False)
    assert "BLOOM_CAPACITY" not in closing_line(filled(2000, 10), 2000, finished=True)


def test_dupefilter_logs_one_closing_line(make_dupefilter, caplog):
    """One INFO line at close, however often it is closed."""
    with caplog.at_level("INFO", "scrapy_bloom"):
        dupefilter = make_dupefilter()
        dupefilter.request_seen(Request("http://example.com/"))
        dupefilter.close("finished")
        dupefilter.close("finished")
    (record,) = [each for each in caplog.records if "The filter knows" in each.message]
    assert record.levelname == "INFO"
    assert "knows 1 request," in record.message


@pytest.mark.parametrize(("urls", "rate"), [(1, 0.5), (70_000, 1e-3), (1_000_000, 1e-6)])
def test_plan_is_exact(urls, rate):
    """A filter of that shape takes as many bytes."""
    assert plan(urls, rate).bytes == ScalableBloomFilter(urls, rate).nbytes
    assert plan(urls, rate).bytes >= BloomFilter(urls, rate).nbytes


def test_set_of_fingerprints_is_measured_right():
    """The formula gives the size of real sets, at every step of their growth, and what the
    allocator was asked for."""
    members = set()
    empty = sys.getsizeof(members)
    for n in range(1, 200_000):
        members.add(n)
        assert sys.getsizeof(members) - empty == _table_bytes(n)
    tracemalloc.start()
    members = {sha1(str(n).encode()).digest() for n in range(100_000)}
    used, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # blocks are rounded up to 16 bytes, which is not traced
    assert used <= set_bytes(len(members)) <= used + 11 * len(members) + 1000


@pytest.mark.parametrize("chart", ["error-by-bits", "error-by-probes", "memory"])
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_charts_are_drawn(tmp_path, chart, suffix):
    """Every chart in both formats, with units on its axes and a title."""
    pytest.importorskip("matplotlib")
    path = tmp_path / f"chart{suffix}"
    draw(chart, path, probes=[1, 6, 14], bits=[8, 16], error_rates=[1e-2, 1e-6])
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    assert len(data) > 10_000


def test_curves_have_the_values_of_the_filter():
    """A curve shows what `sizing` sizes with."""
    bloom_filter = BloomFilter(1_000_000, 1e-6)
    bits = bloom_filter.nbytes * 8 / 1_000_000
    assert error_rate(bits, 14) == pytest.approx(1e-6, rel=0.05)
    assert error_rate(9.6, 7) == pytest.approx(0.00988, rel=0.02)
