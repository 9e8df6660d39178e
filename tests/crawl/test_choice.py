"""Globs of an operator, and what is dropped with them."""

from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.crawl.choice import Filter, Record, matches
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.crawl.records import State

texts = st.text("ab-]!^[*?AÄ\n/.\\\udc80", max_size=8)


@given(globs=st.lists(texts, min_size=1, max_size=3), text=texts)
def test_a_glob_is_that_of_the_standard_library(globs, text):
    """Where case counts, on each system; one of them has to match."""
    assert matches(globs, text) == any(fnmatchcase(text, glob) for glob in globs)


@pytest.mark.parametrize(
    ("glob", "text", "expected"),
    [
        ("[!a]", "b", True),
        ("[!a]", "a", False),
        ("[^a]", "a", True),
        ("[^a]", "b", False),
        ("[]-a]", "^", True),
        ("[a-]", "-", True),
        ("a[", "a[", True),
        ("*[!a]b", "xab", False),
        ("A?", "a1", False),
        ("a*b", "a\nb", True),
        ("*", "\udc80", True),
        ("?", "\udc80", True),
    ],
)
def test_what_a_glob_means(glob, text, expected):
    """Case counts; a set is negated by an exclamation mark."""
    assert matches([glob], text) is expected


def test_a_dropped_request_counts_each_time_it_was_sent():
    """As one that fails: its retries, those after holds, and those in earlier starts."""
    for meta, attempts in (
        ({"bloom_attempts": 3, "retry_times": 2, "bloom_held": 1}, 6),
        ({"retry_times": "2", "bloom_held": -1}, 0),
    ):
        record = Record(State.PENDING, "", 0, {"meta": meta})
        assert record.dropped().attempts == attempts


def test_a_glob_that_is_too_long_is_a_bad_value():
    """And not a file that cannot be read; a long one matches."""
    assert matches(["a" * 5000], "a" * 5000)
    with pytest.raises(ValueError, match="a glob is too long"):
        Filter(urls=["*", "a" * 60_000])


@pytest.mark.parametrize(
    "text",
    [
        FailedRequest("u", "GET", "capped").encode().replace("0.0", '"now"'),
        FailedRequest("u", "GET", "capped").encode().replace('"url"', '"uri"'),
        "{",
        "[]",
    ],
)
def test_a_damaged_record_of_a_failure_is_refused(text):
    """Whatever is wrong with it; a whole one comes back, with any text."""
    whole = FailedRequest("\udcff", "GET", "é", 200, None, 2, 1.5, "\0")
    assert FailedRequest.decode(whole.encode()) == whole
    with pytest.raises((ValueError, TypeError)):
        FailedRequest.decode(text)
