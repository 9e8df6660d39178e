"""Versions and validators: what is asked for again, of all that an earlier crawl has done."""

import logging
import os
from contextlib import closing
from itertools import product
from types import SimpleNamespace

import pytest
from scrapy import Request, signals, spiders
from scrapy.exceptions import NotConfigured
from scrapy.http import Response, XmlResponse
from scrapy.utils.test import get_crawler

from scrapy_bloom import SitemapSpider, scrapy_private
from scrapy_bloom.delta import conditional
from scrapy_bloom.delta.conditional import ConditionalMiddleware
from scrapy_bloom.delta.file_store import FileDeltaStore, Row
from scrapy_bloom.delta.marks import Marks, Temporary
from scrapy_bloom.delta.pages import Pages, unmodified
from scrapy_bloom.delta.settings import DeltaSettings, Digest, Lifetime, version_of
from scrapy_bloom.delta.skipping import Skipping
from scrapy_bloom.errors import FilterFileError
from tests.crawl.engine import Job
from tests.delta import started
from tests.delta.test_skipping import HOUR, LIST, NOON, crawler, skipping_of  # noqa: F401
from tests.seeded import seed_of, told
from tests.world.changes import item_of, since

SEED = seed_of("DELTA_SEED")
forks = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")


def tell(server, *stories):
    """Return what became of the crawls of these stories."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DELTA_REDIS", server.url)
        reports = told("tests.world.changes", *stories, "--beside", 2, seed=SEED)
    return {name: report["runs"] for name, report in reports.items()}


@pytest.fixture(scope="module")
def days(redis_server):
    """What became of the crawls of undisturbed days."""
    return tell(redis_server, "days")


PAGES = [f"page/{number}" for number in range(60)]


@forks
@pytest.mark.slow
@pytest.mark.parametrize(("story", "total"), [("versions", 1000), ("versions_redis", 100)])
def test_of_a_sitemap_only_what_has_another_version_is_asked_for(days, story, total):
    """Crawls a thousand pages, seven seconds: on the second day it takes 13 requests, of which
    three are for the files; also when all marks have expired."""
    pages = [f"page/{number}" for number in range(total)]
    files = ["sitemap", "map", "map"]
    for run, (day, before) in zip(days[story], [(1, 0), (2, 1), (30, 2)], strict=True):
        changed = [page for page in pages if day == 1 or since(page, day) > since(page, before)]
        assert sorted(run["items"]) == sorted(item_of(page, day) for page in changed)
        asked = [page for page in run["asked"] if page.startswith("page")]
        assert sorted(asked) == sorted(changed)
        assert [page.split("/")[0] for page in run["asked"] if page not in asked] == files
    assert len(days[story][1]["asked"]) <= 15


FULL = {f"{kind}/1" for kind in ("first", "index", "keyed", "always", "posted", "bare", "awaited")}
FULL |= {"index/2", "page/3"}
"""What is fetched in full on each day; the last by a callback."""
AGAIN = {"named/1", "dated/1", "gone/1"}


@forks
@pytest.mark.slow
@pytest.mark.parametrize("story", ["validators", "validators_redis"])
def test_a_page_that_has_not_changed_is_renewed_without_an_item(days, story):
    """Of a redirect, a start page, an index page, one without validators and one whose mark is gone
    all is fetched; a page with conditions of its own gets its 304."""
    first = days[story][0]
    for day, run in enumerate(days[story][1:], 2):
        changed = {page for page in PAGES if since(page, day) > since(page, day - 1)}
        moved = ({"target/1"}, set())[day - 2 :]
        by_status = {200: set(), 302: set(), 304: set()}
        for page, status in run["answers"]:
            by_status[status].add(page)
        assert by_status[200] == FULL | changed | moved[0] | {"gone/1"}
        assert by_status[302] == {"moved/1"}
        others = AGAIN | {"own/1"} | ({"target/1"} if day == 3 else set())
        assert by_status[304] == {*PAGES} - changed | others
        items = FULL - {"index/1", "index/2", "page/3"} | changed | moved[0] | {"gone/1"}
        own = item_of("own/1", day) + " again"
        assert sorted(run["items"]) == sorted({item_of(page, day) for page in items} | {own})
        assert (run["reason"], run["errors"]) == ("finished", [])
        unmodified = len(by_status[304]) - len({"own/1", "gone/1"})
        assert run["stats"]["bloom/delta_unmodified"] == unmodified
        received = "downloader/response_bytes"
        assert run["stats"][received] <= first["stats"][received] / 10
    assert "conditional, feeds lack the items of unmodified pages" in run["start"][0]


@forks
@pytest.mark.slow
def test_a_renewed_mark_counts_from_then_on(days):
    """One that had expired, also by more than the store keeps of what has no validators."""
    _, twelfth, eighteenth = days["renewed"]
    asked = {page for page, status in twelfth["answers"] if status == 304}
    assert len(asked) > 50
    assert {*eighteenth["asked"]} == {"first/1", "index/1", "index/2", *AWAY}


AWAY = {"always/1", "awaited/1", "page/3"}


@forks
@pytest.mark.slow
def test_the_http_cache_has_pages_only(days):
    """One INFO line says that nothing is conditional, and the next crawl has all items."""
    first, second = days["cached"]
    items = [sorted(item.partition(" ")[0] for item in run["items"]) for run in (first, second)]
    assert items[0] == items[1]
    assert [status for _, status in first["answers"] if status != 200] == [304]  # the spider's own
    assert "conditional" not in second["start"][0]


@forks
@pytest.mark.slow
@pytest.mark.parametrize("story", ["kills", "fleet"])
def test_five_kills_lose_no_change(redis_server, story):
    """Kills a job, and workers on Redis, fifteen seconds: on each of three days the feeds have all
    that has changed, and what has not is not asked for in full."""
    for name, runs in tell(redis_server, story).items():
        by_version = name.startswith("by_version")
        pages = [f"page/{number}" for number in range(100)] if by_version else PAGES
        written = {*(runs["written"] if story == "fleet" else runs[-1]["written"])}
        assert {item_of(page, day) for page in pages for day in (1, 2, 3)} <= written
        last = runs["answers"][-1] if story == "fleet" else runs[-1]["answers"]
        in_full = [page for page, status in last if status == 200 and page.startswith("page")]
        # without synced feeds, what a worker had in memory when it was killed is fetched again
        assert len(in_full) < len(pages) / 2


# What is skipped, and what a request carries


@pytest.mark.parametrize("stored", [None, "one", "two"])
def test_a_version_that_is_given_decides_alone(crawler, tmp_path, stored):  # noqa: F811
    """Whether the page has a mark, and whatever that is worth; but for `bloom_delta = False`."""
    store = FileDeltaStore(tmp_path, Lifetime(8 * HOUR), lambda: NOON)
    pages, skipping = skipping_of(crawler, store)
    hashed = version_of({"bloom_delta_version": stored})
    for number, (given, marked, wish) in enumerate(
        product([None, "", "one"], [None, NOON, NOON - 9 * HOUR], [None, "1h", False])
    ):
        meta = {"bloom_delta_version": given, "bloom_delta": wish}
        request = Request(
            f"http://example.com/{number}",
            meta={name: value for name, value in meta.items() if value is not None},
        )
        store.add([Row(pages.key_of(request), marked, None, hashed), (b"k" * 20, NOON)])
        store.open()
        is_fresh = marked == NOON if not given else stored == given
        assert skipping.is_done(request, LIST) is (is_fresh and wish is not False), meta
    store.close()


def test_a_version_that_is_no_text_is_told_once(crawler, tmp_path, caplog):  # noqa: F811
    """Such a page is known by its mark."""
    store = FileDeltaStore(tmp_path, Lifetime(), lambda: NOON)
    pages, skipping = skipping_of(crawler, store)
    request = Request("http://example.com/1", meta={"bloom_delta_version": 20260101})
    store.add([(pages.key_of(request), NOON)])
    store.open()
    assert skipping.is_done(request, LIST)
    assert skipping.is_done(request, LIST)
    store.close()
    (line,) = [record.getMessage() for record in caplog.records]
    assert "has 20260101 for the meta key bloom_delta_version: it must be text" in line


@pytest.mark.parametrize("status", [200, 404])
def test_a_version_that_this_round_has_stored_does_not_count(crawler, tmp_path, status):  # noqa: F811
    """A page that is asked for once more in the round is fetched; a response that is not 200 has no
    validators."""
    with closing(FileDeltaStore(tmp_path, Lifetime(), lambda: NOON)) as store:
        pages = Pages(
            crawler, Marks(Temporary()), DeltaSettings(mode="success", conditional=True), store
        )
        request = Request("http://example.com/1", meta={"bloom_delta_version": "1"})
        found = Response(request.url, status=status, headers={"ETag": "x"})
        pages.begin(request, found).is_complete = True
        (row,) = rows = pages.done(request)
        assert (row.validators is None) is (status != 200)
        store.add(rows)
        store.open()
        skipping = Skipping(crawler, pages, 100)
        assert not skipping.is_done(request.copy(), LIST)
        pages.marks.clear()
        assert skipping.is_done(request.copy(), LIST)


@pytest.mark.parametrize("read_only", [False, True])
def test_what_has_become_an_index_page_is_not_conditional(crawler, tmp_path, read_only):  # noqa: F811
    """Though it still has the validators of the round that has marked it."""
    store = FileDeltaStore(tmp_path, Lifetime(), lambda: NOON)
    pages, skipping = skipping_of(crawler, store)
    request = Request("http://example.com/1")
    response = Response(request.url, headers={"ETag": "x"}, request=request)
    for links, expected in ((0, [b"x", b""]), (1, [b"x", b""] if read_only else [])):
        pages.settings = pages.settings.but(conditional=True, read_only=read_only and links > 0)
        outcome = pages.begin(request, response)
        outcome.is_complete, outcome.items = True, 1
        if links:
            outcome.leads_to(Request("http://example.com/2"), response)
        store.add(pages.done(request))
        store.open()
        assert bool([*pages.marks]) is (not (read_only and links))
        if not links:
            assert skipping.validators_of(request) == []  # they are those of this round
        pages.marks.clear()
        assert skipping.validators_of(request) == expected
        assert skipping.validators_of(request.replace(meta={"bloom_delta": False})) == []
        pages.begin(request, response)
        assert skipping.validators_of(request) == []  # its callback asks for it once more
    store.close()


def test_a_page_that_has_not_changed_is_not_compared(crawler, tmp_path):  # noqa: F811
    """It has no items, and keeps its digest; its version is the new one."""
    with closing(FileDeltaStore(tmp_path, Lifetime(), lambda: NOON)) as store:
        settings = DeltaSettings(mode="item", digest=Digest(), conditional=True)
        pages = Pages(crawler, Marks(Temporary()), settings, store)
        meta = {"bloom_delta_version": "2"}
        request = Request("http://example.com/1", unmodified, meta=meta)
        pages.begin(request, Response(request.url, status=304)).is_complete = True
        assert pages.done(request) == [Row(pages.key_of(request), NOON, None, version_of(meta))]
        assert not pages.marks.verdicts.total()


def test_an_index_page_that_is_compared_has_no_version(crawler, tmp_path):  # noqa: F811
    """With one it would be skipped while its site says the same of it, and its links with it."""
    with closing(FileDeltaStore(tmp_path, Lifetime(), lambda: NOON)) as store:
        settings = DeltaSettings(mode="item", digest=Digest())
        pages = Pages(crawler, Marks(Temporary()), settings, store)
        request = Request("http://example.com/1", meta={"bloom_delta_version": "1"})
        outcome = pages.begin(request, Response(request.url))
        outcome.is_complete = outcome.is_index_page = True
        (row,) = pages.done(request)
        assert (row.time, row.version) == (None, None)
        assert row.digest is not None


def test_a_version_that_an_errback_copies_is_not_that_of_its_page(tmp_path):
    """Nor is one that a spider writes taken away, though a page with the same is in its errback."""
    job = Job(tmp_path / "job").open()
    pages, _ = skipping_of(job.crawler, None)
    meta = {"bloom_delta_version": "3", "depth": 1, "download_timeout": 180.0}
    failed = Request("http://example.com/failed", meta=meta)
    job.engine.scraper.slot.active.add(failed)
    own = {"bloom_delta_version": "3", "depth": 2}
    for url, given, kept in (
        ("http://example.com/other", meta, False),
        ("http://example.com/other", own, True),
        (failed.url, meta, True),
    ):
        request = Request(url, meta=given)
        pages.scheduled(request)
        assert ("bloom_delta_version" in request.meta) is kept
    job.close()


@pytest.fixture
def middleware(monkeypatch):
    """The middleware of a crawl that knows validators for all pages, and has dispatched a page."""
    found = SimpleNamespace(validators_of=lambda request: [b'"tag"', b""])
    crawling = get_crawler(settings_dict={**OURS, "BLOOM_DELTA_CONDITIONAL": True})
    crawling.get_spider_middleware = lambda _: SimpleNamespace(skipping=found)
    scheduler = SimpleNamespace(has_dispatched=lambda request: "awaited" not in request.flags)
    monkeypatch.setattr(conditional, "scheduler_of", lambda _: scheduler)
    made = ConditionalMiddleware.from_crawler(crawling)
    made.found = found
    return made


PAGE = Request("http://example.com/page", meta={"depth": 1})


@pytest.mark.parametrize(
    ("changes", "is_asked"),
    [
        ({}, True),
        ({"meta": {}}, False),  # of `start()`
        ({"flags": ["awaited"]}, False),
        ({"method": "HEAD"}, False),
        ({"body": b"x"}, False),
        *(
            ({"headers": {name: "x"}}, False)
            for name in ("if-None-Match", "If-Modified-Since", "If-Match", "Range")
        ),
    ],
)
def test_who_carries_validators(middleware, changes, is_asked):
    """A GET without a body that the scheduler gave, of a callback, without conditions."""
    request = PAGE.replace(errback=print, **changes)
    before = dict(request.headers)
    middleware.process_request(request)
    assert (request.headers.get("If-None-Match") == b'"tag"') is is_asked
    assert "If-Modified-Since" not in request.headers or not is_asked
    own = Response(request.url, status=304)
    assert middleware.process_response(request, own) is own
    assert dict(request.headers) == before
    middleware._response_received(own, request)
    assert (request.callback is None) is not is_asked
    assert (request.errback is None) is is_asked


@pytest.mark.parametrize("is_answered", [True, False])
def test_no_copy_carries_them(middleware, is_answered):
    """Neither a redirect, nor a retry of what has failed, or has gone back from the downloader."""
    request = PAGE.copy()
    middleware.process_request(request)
    assert request.headers
    if is_answered:
        middleware.process_response(request, Response(request.url, status=302))
    else:
        request = request.copy()
        crawler = middleware._crawler
        crawler.signals.send_catch_log(signals.request_scheduled, request=request, spider=None)
    assert not request.headers
    assert request.meta == {"depth": 1}


def test_a_page_whose_mark_is_gone_is_asked_again(middleware):
    """Unfiltered, and it does not ask so again."""
    request = PAGE.copy()
    middleware.process_request(request)
    middleware.found.validators_of = lambda request: []
    again = middleware.process_response(request, Response(request.url, status=304))
    assert (again.url, again.dont_filter, dict(again.headers)) == (request.url, True, {})
    middleware.process_request(again)
    assert not again.headers


def test_a_store_that_fails_has_no_validators(crawler, caplog):  # noqa: F811
    """The page is fetched in full, and the store left alone for a minute."""

    class Locked:
        is_empty = False

        def fact(self, key, name):
            raise FilterFileError("database is locked")

    _, skipping = skipping_of(crawler, Locked())
    assert [skipping.validators_of(PAGE) for _ in range(3)] == [[]] * 3
    assert len(caplog.records) == 1


OURS = {"BLOOM_DELTA": "item", "SCHEDULER": "scrapy_bloom.RedisDurableScheduler"}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"BLOOM_DELTA": None}, "BLOOM_DELTA_CONDITIONAL is True, and BLOOM_DELTA is None: set it"),
        ({"SCHEDULER": "scrapy.core.scheduler.Scheduler"}, "SCHEDULER is 'scrapy.core.scheduler.S"),
        ({"BLOOM_DELTA_CONDITIONAL": "perhaps"}, "BLOOM_DELTA_CONDITIONAL is 'perhaps': it must"),
    ],
)
def test_validators_in_vain_are_refused(given, told):
    """At the start, with what is missing."""
    with pytest.raises(ValueError, match=told):
        started(ConditionalMiddleware, **{**OURS, "BLOOM_DELTA_CONDITIONAL": True, **given})


def test_with_the_http_cache_it_is_off(caplog):
    """In one line, if it is asked for."""
    settings = {**OURS, "HTTPCACHE_ENABLED": True}
    for value in ("False", True):
        with caplog.at_level(logging.INFO), pytest.raises(NotConfigured):
            started(ConditionalMiddleware, **settings, BLOOM_DELTA_CONDITIONAL=value)
    (line,) = [each.getMessage() for each in caplog.records if "scrapy_bloom." in each.name]
    assert "BLOOM_DELTA_CONDITIONAL is off: with HTTPCACHE_ENABLED" in line


# Sitemaps


def sitemap(*entries, root="urlset", url="http://example.com/sitemap.xml"):
    """Return a sitemap file."""
    inner = "url" if root == "urlset" else "sitemap"
    text = "".join(f"<{inner}>{entry}</{inner}>" for entry in entries)
    body = f'<{root} xmlns:xhtml="http://www.w3.org/1999/xhtml">{text}</{root}>'
    return XmlResponse(url, body=body.encode(), request=Request(url))


LINK = '<xhtml:link rel="alternate" href="http://example.com/b%20c/de"/>'


class Sitemaps(SitemapSpider):
    name = "sitemaps"
    sitemap_rules = (("/b", "parse_b"), ("", "parse"))
    sitemap_alternate_links = True
    filtered = 0

    def sitemap_filter(self, entries):
        for entry in entries:
            self.filtered += 1
            if "left-out" not in entry["loc"]:
                yield entry

    def parse(self, response):
        """Do nothing."""

    def parse_b(self, response):
        """Do nothing."""


def test_each_page_has_the_lastmod_of_its_entry():
    """As Scrapy reads it, from files that are read in turns; files are always fetched."""
    spider = Sitemaps.from_crawler(get_crawler())
    dated = "<lastmod>2026-01-0{}</lastmod>"
    one = sitemap(
        f"<loc>http://example.com/b c</loc>{dated.format(1)}{LINK}",
        "<loc>http://example.com/none</loc>",
        f"<loc>http://example.com/left-out</loc>{dated.format(1)}",
    )
    two = sitemap(f"<loc>http://example.com/none</loc>{dated.format(2)}")
    first, second = (iter(spider._parse_sitemap(each)) for each in (one, two))
    requests = [next(first), next(second), *first, *second]
    found = [(each.url, each.callback.__name__, each.meta) for each in requests]
    version = {"bloom_delta_version": "2026-01-01"}
    assert found == [
        ("http://example.com/b%20c", "parse_b", version),
        ("http://example.com/none", "parse", {"bloom_delta_version": "2026-01-02"}),
        ("http://example.com/b%20c/de", "parse_b", version),
        ("http://example.com/none", "parse", {}),
    ]
    assert spider.filtered == 4
    index = sitemap(f"<loc>http://example.com/s.xml</loc>{dated.format(1)}", root="sitemapindex")
    robots = Response("http://example.com/robots.txt", body=b"Sitemap: http://example.com/s.xml")
    robots = robots.replace(cls=XmlResponse, request=Request(robots.url))
    for response in (index, robots):
        (request,) = spider._parse_sitemap(response)
        assert (request.url, request.meta) == ("http://example.com/s.xml", {"bloom_delta": False})
        assert request.callback == spider._parse_sitemap


def test_a_scrapy_that_hides_how_it_reads_sitemaps_is_told(monkeypatch, caplog):
    """Pages have no version then."""
    scrapy_private.miss.cache_clear()
    monkeypatch.delattr(spiders.SitemapSpider, "_parse_sitemap")
    for _ in range(2):
        Sitemaps()
    scrapy_private.miss.cache_clear()
    (record,) = caplog.records
    assert "has no SitemapSpider._parse_sitemap: pages of sitemaps" in record.getMessage()
