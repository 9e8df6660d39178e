"""Figures for people, and what a filter has to say at its end."""

import logging

import pytest
from scrapy.utils.test import get_crawler

from scrapy_bloom import ScalableBloomFilter
from scrapy_bloom.amounts import in_bytes, pages_text
from scrapy_bloom.commands.texts import in_short
from scrapy_bloom.seen import closing_line
from scrapy_bloom.startup import refuse


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (4_014_080, "4.01 MB"), (999_999, "1 MB"),
     (10.7e9, "10.7 GB"), (5e12, "5 TB"), (5e15, "5 PB"), (4e18, "4 EB")],
)  # fmt: skip
def test_bytes_have_units(number, text):
    """Three digits, decimal units."""
    assert in_bytes(number) == text


def test_pages_and_rounding_are_readable():
    """Few digits, thousands separated, no false precision."""
    assert [pages_text(n) for n in (0, 1e-12, 0.00123, 3.4, 9, 10, 1234.5, 999_999)] == [
        "none", "none", "about 0.001", "about 3", "about 9", "about 10", "about 1,234",
        "about 999,999",
    ]  # fmt: skip
    assert [pages_text(n) for n in (1e6, 1_000_000.5, 5.6e7)] == [
        "about 1e+06", "about 1e+06", "about 6e+07",
    ]  # fmt: skip
    assert [in_short(rate) for rate in (0.0, 4.81e-7, 1e-16)] == ["0", "4.8e-07", "< 1e-15"]


def filled(capacity, count, error_rate=1e-6):
    bloom_filter = ScalableBloomFilter(capacity, error_rate)
    bloom_filter.update(str(n) for n in range(count))
    return bloom_filter


def test_closing_line_says_how_it_went():
    """What it knows, what it has cost, and no advice where the capacity was right."""
    assert closing_line(filled(1000, 800), 1000) == (
        "The filter knows 800 requests; pages probably lost: none; memory: 4.1 kB."
    )
    one = closing_line(filled(1000, 1, 0.1), 1000)
    assert one.startswith("The filter knows 1 request; pages probably lost: none;")
    assert "lost: about " in closing_line(filled(10_000, 10_000, 0.01), 10_000)


def test_closing_line_names_a_better_capacity():
    """Where the filter has grown."""
    grown = closing_line(filled(1000, 5000), 1000)
    assert grown.endswith(
        " It has grown to 3 layers: with BLOOM_CAPACITY = 5_800 a crawl of this size takes 24.6 kB."
    )
    assert "BLOOM_CAPACITY" not in closing_line(filled(2000, 10), 2000)


@pytest.mark.parametrize("logger", ["asyncio", "twisted"])
def test_only_the_refusal_has_no_traceback(caplog, logger):
    """Any other error that is not handled is logged as ever."""
    refused, other = ValueError("refused"), ValueError("other")
    with pytest.raises(ValueError, match="refused"):
        refuse(get_crawler(), refused)
    caplog.clear()
    for error in (refused, other):
        logging.getLogger(logger).error("%s", error, exc_info=error)
    assert [each.getMessage() for each in caplog.records] == ["other"]
