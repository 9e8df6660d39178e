"""Globs of failed requests, which mean what they mean to SQLite; and what is dropped with them."""

import sqlite3
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scrapy_bloom.job.failed_request import ALL, Choice, matches
from scrapy_bloom.job.pending import PendingRequest

texts = st.text("ab-]^[*?!AÄ\n/.\\", max_size=8)


@given(glob=texts, text=texts)
def test_a_glob_is_sqlites(glob, text):
    """Version 0.2.0 asked SQLite, so that is what scripts rely on."""
    with closing(sqlite3.connect(":memory:")) as connection:
        ((expected,),) = connection.execute("SELECT ? GLOB ?", (text, glob))
    assert matches([glob], text) == expected


@pytest.mark.parametrize(
    ("glob", "text", "expected"),
    [
        ("[^", "^", False),
        ("[^]", "^", False),
        ("[]", "]", False),
        ("[]-a]", "-", True),
        ("[^]]", "a", True),
        ("[!a]", "a", True),
        ("[a-]", "-", True),
        ("[b-a]", "b", True),
        ("[a-b-]", "-", True),
        ("a[", "a[", False),
        ("*[^a]b", "xab", False),
        ("A?", "a1", False),
        ("*", "\udc80", True),
    ],
)
def test_what_a_glob_means(glob, text, expected):
    """Case counts, and a set is SQLite's."""
    assert matches([glob], text) is expected


def test_each_kind_of_glob_has_to_match():
    """One of the reasons, and one of the URLs, each only if there are some."""
    choice = Choice(["x", "down*"], ["*/a*", "*[?]*"])
    assert choice.includes("download/dns", "http://example.com/c?z")
    assert choice.includes("x", "http://example.com/a1")
    assert not choice.includes("x", "http://example.com/b1")
    assert not choice.includes("y", "http://example.com/a2")
    assert not Choice(urls=["*/A*"]).includes("x", "http://example.com/a1")
    assert Choice(reasons=["x"]).includes("x", "")
    assert ALL.includes("", "")


def test_a_dropped_request_counts_each_time_it_was_sent():
    """As one that fails: its retries, those after holds, and those in earlier starts."""
    meta = {"bloom_attempts": 3, "retry_times": 2, "bloom_held": 1}
    request = PendingRequest.of({"url": "http://a.example/"}, "a.example", 0)
    assert request.dropped({"meta": meta}).attempts == 6
    assert request.dropped({"meta": {"retry_times": "2", "bloom_held": -1}}).attempts == 0


def test_a_glob_that_is_longer_than_sqlite_takes_is_a_bad_value():
    """And not a file that cannot be read."""
    with pytest.raises(ValueError, match="a glob is too long"):
        matches(["a" * 60_000], "a")
