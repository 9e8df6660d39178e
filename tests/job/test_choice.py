"""Globs of failed requests, which mean what they mean to SQLite."""

import sqlite3
from contextlib import closing

from hypothesis import example, given
from hypothesis import strategies as st

from scrapy_bloom.job.failure import ALL, Choice, glob_pattern

texts = st.text("ab-]^[*?!AÄ\n/.\\", max_size=8)


@given(glob=texts, text=texts)
@example("[^", "^")
@example("[^]", "^")
@example("[]", "]")
@example("[]-a]", "-")
@example("[^]]", "a")
@example("[!a]", "a")
@example("[a-]", "-")
@example("[b-a]", "b")
@example("[a-b-]", "-")
@example("a[", "a[")
def test_a_glob_is_sqlites(glob, text):
    """Version 0.2.0 asked SQLite, so that is what scripts rely on."""
    with closing(sqlite3.connect(":memory:")) as connection:
        ((matches,),) = connection.execute("SELECT ? GLOB ?", (text, glob))
    assert (glob_pattern(glob).fullmatch(text) is not None) == matches


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
