"""Globs of an operator, and those over URLs, of which one counts a page for BLOOM_BUDGET."""

import re
from collections import Counter
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from w3lib.url import safe_url_string

from scrapy_bloom.crawl.budget import is_pattern
from scrapy_bloom.crawl.choice import Counts, Filter, Record, matches
from scrapy_bloom.crawl.failed_request import FailedRequest
from scrapy_bloom.crawl.patterns import Patterns, place_of
from scrapy_bloom.crawl.records import State

SITE = "example.com"
texts = st.text("ab-]!^[*?AÄ\n/.\\\udc80", max_size=8)


@given(globs=st.lists(texts, min_size=1, max_size=3), text=texts)
def test_a_glob_is_that_of_the_standard_library(globs, text):
    """Where case counts, on each system; one of them has to match."""
    assert matches(globs, text) == any(fnmatchcase(text, glob) for glob in globs)


@pytest.mark.parametrize(
    ("url", "host", "path"),
    [
        ("http://Example.COM", "example.com", "/"),
        ("https://u:p@w@example.com:8080/A/b?c=/d#e", "example.com", "/A/b?c=/d"),
        ("http://example.com?q#a/b", "example.com", "/?q"),
        ("ftp://[2001:DB8::1]:21/x", "2001:db8::1", "/x"),
        ("http://example.com:/x", "example.com", "/x"),
        ("data:,http://example.com/", "", ""),
        ("file:///a/b", "", "/a/b"),
    ],
)
def test_the_place_of_a_url(url, host, path):
    """Host, path and query, without user, port and fragment."""
    assert place_of(url) == (host, path)


@pytest.mark.parametrize(
    ("glob", "path", "counts"),
    [
        ("Example.com/Calendar/*", "/Calendar/1", True),
        ("example.com/Calendar/*", "/calendar/1", False),
        ("example.com/*[?&]sort=*", "/list?page=2&sort=up", True),
        ("*.com", "/anything?at=all", True),
        ("*com/", "/x", False),
        ("*alendar*", "/calendar/", False),
    ],
)
def test_what_a_pattern_counts(glob, path, counts):
    """With a slash host, path and query, else the host; case counts behind the host."""
    assert is_pattern(glob)
    assert bool(Patterns([glob]).of(f"http://{SITE}:80{path}#top")) is counts


parts = st.sampled_from(["a", "b", "/", "*", "?", "[ab]", "a/", "*/"])
globs = st.lists(st.lists(parts, min_size=1, max_size=5).map("".join), max_size=4, unique=True)
places = st.tuples(st.text("ab", min_size=1, max_size=3), st.text("ab/?", max_size=4))


def literals(glob):
    return len(re.sub(r"\[..]|[*?]", "", glob))


@given(
    globs.map(lambda found: [g for g in found if is_pattern(g) and g[0] != "/"]),
    st.lists(places, max_size=8),
)
@example(["*/b", "b/*"], [("b", "b")])
@example(["*a", "a/*"], [("a", "")])
@example(["[ab]/a", "a/[ab]"], [("a", "a")])
@example(["*a", "*/a/a"], [("a", "/a/a")])
@example(["*a", "b*/"], [("ba", "")])
def test_the_one_with_most_literal_characters_counts(chosen, found):
    """As a look at each of them finds; two that could tie are refused."""
    wanted = {}
    for host, path in found:
        url = f"http://{host}/{path}"
        whole = f"{host}/{path}"
        wanted[url] = [g for g in chosen if fnmatchcase(whole if "/" in g else host, g)]
    if not chosen:
        return
    try:
        patterns = Patterns(chosen)
    except ValueError:
        assert len({*map(literals, chosen)}) < len(chosen)
        return
    for url, matching in wanted.items():
        ranks = Counter(map(literals, matching))
        assert patterns.of(url) == max(matching, key=literals, default="")
        assert max(ranks.values(), default=1) == 1


@pytest.mark.parametrize(
    ("one", "other", "ties"),
    [
        *(("*/calendar/*", "*/holidays/*", True), ("a.com/x/*", "b.com/x/*", False)),
        *(("*a.com/", "a.com/*", True), ("a.com/*/xy", "*/x/xy/a.com", False)),
        *(("A.com/x*", "a.com/x*", True), ("a*/bc", "*a/bc", True)),
        *(("*.a.com", other, True) for other in ("*b.com/", "c.a.co*")),
        *(("*.a.com", other, False) for other in ("b.a.com/*", "b.com/*", "c.a.c*")),
        ("a.com/" + "*a" * 60, "a.com/" + "*b" * 60, False),
        ("a.com/" + "*a" * 60 + "*", "a.com/" + "*b" * 60 + "*", True),
    ],
)
def test_ties_are_refused_where_a_url_may_match_both(one, other, ties):
    """The line names both; it takes no time, however many wildcards there are."""
    for globs in [one, other], [other, one]:
        if not ties:
            Patterns(globs)
            continue
        with pytest.raises(ValueError, match=f"^BLOOM_BUDGET has {re.escape(repr(globs[0]))} and "):
            Patterns(globs)


@pytest.mark.parametrize("glob", ["a.com:80/b/*", "http://a.com/*", "*://a.com/*", "/b/*", "a/*#b"])
def test_a_pattern_with_more_than_host_path_and_query_is_refused(glob):
    """It would match no page; but a query may have an address in it, and a host colons."""
    with pytest.raises(ValueError, match=f"^BLOOM_BUDGET has {re.escape(repr(glob))}, which "):
        Patterns([glob])
    for sound in ("a.com/?u=http://b.com:80/*", "2001:db8::1/*", "*?next=http://*", "a.com/[!#]*"):
        Patterns([sound])


def test_a_long_pattern_is_refused_and_a_hostile_url_costs_nothing():
    with pytest.raises(ValueError, match=r"^BLOOM_BUDGET has a pattern .* too long: 6,002 char"):
        Patterns(["a/" + "*" * 6000])
    assert Patterns(["a.com/" + "*a" * 20 + "b"]).of("http://a.com/" + "a" * 5000) == ""


def counted(urls, by):
    """Return the counts of pending requests with these URLs."""
    found = Counts()
    for url in urls:
        found.add(Record(State.PENDING, "s", 0, {"url": url}), Filter(), by)
    return found


def test_paths_are_told_apart_by_what_shares_the_whole():
    """The shortest prefixes that have a share each; the rest is elsewhere."""
    trap = [
        *(f"http://a.com/calendar/{year}/{day}" for year in range(50) for day in range(10)),
        *(f"http://a.com/shop/{n}" for n in range(300)),
        *(f"https://b.com:81/search?q={n}&page=1#x" for n in range(150)),
        *(f"http://c{n}.com/" for n in range(50)),
    ]
    found = counted(trap, "path").folded(50)
    assert found.by == {"a.com/calendar/": 500, "a.com/shop/": 300, "b.com/search": 150, "": 50}
    for prefix, url in found.examples.items():
        assert "".join(place_of(url)).startswith(prefix)
    assert found.folded(301).by == {"a.com/calendar/": 500, "": 500}


def test_parameters_count_once_in_a_request():
    found = counted(["http://a/?b=1&b=2&c", "http://a/?b=&%64%2f=/x/", "http://a/"], "parameter")
    assert found.by == {"b": 2, "c": 1, "d/": 1}
    assert found.examples["b"] == "http://a/?b=1&b=2&c"


@given(st.lists(st.text("ab/", max_size=30), max_size=60), st.integers(0, 20))
def test_no_request_is_lost_in_a_fold(paths, least):
    """Each counts in one prefix of it, and all but the rest have so many."""
    urls = [safe_url_string(f"http://h/{path}") for path in paths]
    found = counted(urls, "path").folded(least)
    assert found.by.total() == len(urls)
    assert all(count >= least for prefix, count in found.by.items() if prefix)


def test_memory_has_a_bound(monkeypatch):
    """Small ones are folded on the way, as they will be in the end."""
    monkeypatch.setattr("scrapy_bloom.crawl.choice.MOST_VALUES", 100)
    urls = [
        url for n in range(200) for url in (f"http://a/trap/{n}/x", f"http://b{n}/", "http://c")
    ]
    found = counted(urls, "path")
    assert len(found.by) <= 101
    assert found.folded(100).by == {"a/trap/": 200, "c/": 200, "": 200}


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


def test_a_damaged_record_of_a_failure_is_refused():
    """Whatever is wrong with it; a whole one comes back, with any text."""
    whole = FailedRequest("\udcff", "GET", "é", 200, None, 2, 1.5, "\0")
    text = whole.encode()
    assert FailedRequest.decode(text) == whole
    for damaged in (text.replace("1.5", '"now"'), text.replace('"url"', '"uri"'), "{", "[]"):
        with pytest.raises((ValueError, TypeError)):
            FailedRequest.decode(damaged)
