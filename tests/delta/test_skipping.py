"""What is skipped, is done, or is asked for if it has changed; the engine only keeps its books."""

import logging
import os
import time
from itertools import product
from types import SimpleNamespace

import pytest
from scrapy import Request, signals, spiders
from scrapy.exceptions import NotConfigured
from scrapy.http import Response, XmlResponse
from scrapy.utils.request import fingerprint
from scrapy.utils.test import get_crawler

from scrapy_bloom import SitemapSpider, scrapy_private
from scrapy_bloom.delta import conditional
from scrapy_bloom.delta import skipping as skipping_module
from scrapy_bloom.delta.conditional import ConditionalMiddleware
from scrapy_bloom.delta.file_store import FileDeltaStore, Row
from scrapy_bloom.delta.marks import Marks, Temporary
from scrapy_bloom.delta.middleware import DeltaMiddleware
from scrapy_bloom.delta.pages import Pages, unmodified
from scrapy_bloom.delta.settings import DeltaSettings, Digest, Lifetime, version_of
from scrapy_bloom.delta.skipping import Skipping
from scrapy_bloom.errors import BloomError, FilterFileError
from tests.crawl.engine import Job
from tests.crawl.feed_jobs import FeedJob
from tests.delta import started

HOUR = 3600.0
NOON = 1_800_000_000.0
LIST = Response("http://example.com/list", request=Request("http://example.com/list"))
PAGE = Request("http://example.com/page", meta={"depth": 1})


@pytest.fixture
def crawler(make_dupefilter):
    """A crawler whose scheduler has a dupefilter of ours."""
    classes = {"REQUEST_FINGERPRINTER_CLASS": "scrapy_bloom.CanonicalRequestFingerprinter"}
    dupefilter = make_dupefilter(**classes)
    dupefilter.crawler.engine.scheduler = SimpleNamespace(df=dupefilter)
    return dupefilter.crawler


@pytest.fixture
def store(tmp_path):
    """A store of a period of eight hours; at first its clock stands at noon."""
    made = FileDeltaStore(tmp_path / "memory", Lifetime(8 * HOUR), lambda: made.now)
    made.now = NOON
    yield made
    made.close()


def pages_of(crawler, store, mode="item", **settings):
    """Return the pages of a crawl with that store."""
    return Pages(crawler, Marks(Temporary()), DeltaSettings(mode=mode, **settings), store)


def skipping_of(crawler, store):
    """Return the pages of a crawl with that store, and what decides which it skips."""
    pages = pages_of(crawler, store)
    return pages, Skipping(crawler, pages, url_cache=100)


def test_a_page_is_skipped_until_its_mark_expires(crawler, store):
    """By its URL, too, where that is remembered from the first time."""
    pages, skipping = skipping_of(crawler, store)
    store.add([(pages.key_of(PAGE), NOON)])
    store.open()
    for hours, is_done in ((0, True), (1, True), (8, True), (8.1, False), (20, False)):
        store.now = NOON + hours * HOUR
        assert skipping.is_done(Request(PAGE.url), LIST) is is_done


@pytest.mark.parametrize("key", ["bloom_delta_key", "bloom_fingerprint"])
def test_a_page_that_is_asked_for_once_more_keeps_its_key(crawler, store, key):
    """A callback that sends its own request again copies its meta, and means that page."""
    pages, skipping = skipping_of(crawler, store)
    request = PAGE.replace(meta={key: "page", "download_latency": 0.1})
    crawler.signals.send_catch_log(signals.response_received, request=request, spider=None)
    assert pages.key_of(request) == pages.key_of(PAGE.replace(meta={key: "page"}))
    page = Response(request.url, request=request)
    again = request.replace(dont_filter=True)
    assert not skipping.is_done(again, page)
    assert pages.key_of(again) == pages.key_of(request)
    for what in ({"url": f"{request.url}/2"}, {"method": "POST"}, {"body": b"x"}):
        other = request.replace(**what)
        assert not skipping.is_done(other, page)
        assert pages.key_of(other) != pages.key_of(request)


def test_a_store_that_fails_is_left_alone_for_a_while(crawler, caplog, monkeypatch):
    """A look may wait for it: it is asked after a pause, and until then all is fetched in full."""
    asked = []

    def fact(key, _):
        asked.append(key)
        raise FilterFileError("database is locked")

    locked = SimpleNamespace(is_empty=False, fact=fact, known_until=fact)
    _, skipping = skipping_of(crawler, locked)
    for times in (1, 5):
        assert not any(skipping.is_done(Request(f"data:,{n}"), LIST) for n in range(4))
        assert [skipping.validators_of(PAGE) for _ in range(2)] == [[]] * 2
        assert len(asked) == {1: 1, 5: 7}[times]
        monkeypatch.setattr(skipping_module, "PAUSE", 0.0)
        skipping._asked_from = 0.0
    (record,) = caplog.records
    assert "database is locked. Nothing is skipped for a minute" in record.getMessage()


@pytest.mark.parametrize("reason", [None, "callback", "download/timeout"])
@pytest.mark.parametrize("mode", ["item", "success", "response"])
def test_a_page_that_has_failed_is_not_done(crawler, store, mode, reason):
    """Under `response` what has failed after the response is."""
    pages = pages_of(crawler, store, mode)
    outcome = pages.begin(PAGE)
    outcome.is_complete, outcome.items = True, 1
    of_the_page = mode == "response" and reason == "callback"
    assert bool(pages.done(PAGE, reason)) is (reason is None or of_the_page)


def test_a_store_that_cannot_be_written_to_is_refused(monkeypatch, tmp_path):
    """At the start, not at the end of the crawl; a test crawl may read it."""
    (tmp_path / "memory").mkdir()
    settings = {"BLOOM_DELTA": "item", "BLOOM_DELTA_DIR": str(tmp_path / "memory" / "of" / "it")}
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(BloomError, match=r"memory cannot be written to, .* BLOOM_DELTA_READ_ONLY"):
        started(**settings)
    started(**settings, BLOOM_DELTA_READ_ONLY=True)
    assert [*tmp_path.rglob("*")] == [tmp_path / "memory"]


@pytest.mark.parametrize(
    ("settings", "feeds", "is_known"),
    [({}, ["items.jl"], False), ({"JOBDIR": None}, ["items.jl"], False), ({}, [], True)],
)
def test_marks_are_in_the_store_when_the_spider_and_its_feeds_are_closed(
    opened, settings, feeds, is_known, tmp_path
):
    """Without engine_stopped, which may not come. A skip is told by Scrapy's signal and a stat."""
    known, dropped = Request("http://example.com/known"), []
    store = FileDeltaStore(tmp_path / "memory", Lifetime())
    store.add([(fingerprint(known), time.time())])
    settings = {"BLOOM_DELTA": "item", "BLOOM_DELTA_DIR": str(store.directory), **settings}
    feeds = {tmp_path / name: "jsonlines" for name in feeds}
    job = FeedJob(tmp_path, feeds, BLOOM_DURABLE_FEEDS=False, **settings)
    drop = lambda request: dropped.append(request)  # noqa: E731
    job.crawler.signals.connect(drop, signals.request_dropped)
    middleware = DeltaMiddleware.from_crawler(job.crawler)
    job.engine.scraper.spidermw.middlewares = [middleware]
    Job.open(opened(job, later=True))
    job.send(signals.spider_opened)
    job.start()
    page = job.page("page")
    response = job.response(page)
    response.request = page
    middleware.process_spider_input(response)
    assert list(middleware.process_spider_output(response, [known] * is_known)) == []
    job.item({"n": 1}, response)
    job.done(page)
    job.close()
    store.look()
    assert store.holds == ("1 page" if is_known else "2 pages")  # it has become an index page
    assert dropped == [known] * is_known
    assert (job.stat("bloom/delta_skipped") or 0) == is_known


# Versions and validators


@pytest.mark.parametrize("stored", [None, "one", "two"])
def test_a_version_that_is_given_decides_alone(crawler, store, stored):
    """Whether the page has a mark, and whatever that is worth; but for `bloom_delta = False`."""
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


@pytest.mark.parametrize(
    ("meta", "told"),
    [
        ({"bloom_delta_version": 20260101}, "20260101 for the meta key bloom_delta_version: it m"),
        ({"bloom_delta_key": 17}, "17 for the meta key bloom_delta_key: it must be text or bytes"),
    ],
)
def test_a_version_or_a_key_that_is_no_text_is_told_once(crawler, store, caplog, meta, told):
    """Such a page is known by its mark and by its URL."""
    pages, skipping = skipping_of(crawler, store)
    request = PAGE.replace(meta=meta)
    store.add([(pages.key_of(PAGE), NOON)])
    store.open()
    assert [skipping.is_done(request, LIST) for _ in range(2)] == [True] * 2
    (line,) = [record.getMessage() for record in caplog.records]
    assert f"has {told}" in line


@pytest.mark.parametrize("status", [200, 404])
def test_a_version_that_this_round_has_stored_does_not_count(crawler, store, status):
    """A page that is asked for once more in the round is fetched; only a 200 has validators."""
    pages = pages_of(crawler, store, "success", conditional=True)
    request = PAGE.replace(meta={"bloom_delta_version": "1"})
    found = Response(request.url, status=status, headers={"ETag": "x"})
    pages.begin(request, found).is_complete = True
    (row,) = rows = pages.done(request)
    assert bool(row.validators) is (status == 200)
    store.add(rows)
    store.open()
    skipping = Skipping(crawler, pages, 100)
    assert not skipping.is_done(request.copy(), LIST)
    pages.marks.clear()
    assert skipping.is_done(request.copy(), LIST)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("then", [("x", 200, 1), ("", 200, 1), ("", 200, 0), ("x", 404, 0)])
def test_what_has_become_an_index_page_or_has_no_validators_is_not_conditional(
    crawler, store, read_only, then
):
    """Though it still has the validators of the round that has marked it. Another page that shares
    its key has others."""
    pages, skipping = skipping_of(crawler, store)
    request = PAGE.replace(meta={"depth": 1, "bloom_fingerprint": "page"})
    for is_later, (tag, status, links) in enumerate((("x", 200, 0), then)):
        response = Response(request.url, status, headers={"ETag": tag}, request=request)
        expected = [] if is_later and not read_only else [b"x", b""]
        pages.settings = pages.settings.but(conditional=True, read_only=read_only and is_later > 0)
        outcome = pages.begin(request, response)
        outcome.is_complete, outcome.items = True, 1
        if links:
            outcome.leads_to(Request("http://example.com/2"), response)
        store.add(pages.done(request))
        store.open()
        assert bool([*pages.marks]) is (not (read_only and is_later))
        if not is_later:
            assert skipping.validators_of(request) == []  # they are those of this round
        pages.marks.clear()
        assert skipping.validators_of(request) == expected
        assert skipping.validators_of(request.replace(url="http://example.com/2")) == []
        assert skipping.validators_of(request.replace(meta={"bloom_delta": False})) == []
        pages.begin(request, response)
        assert skipping.validators_of(request) == []  # its callback asks for it once more


def test_what_is_compared(crawler, store):
    """A page that has not changed has no items: it is not, keeps its digest and has the new
    version. An index page is, but with a version it would be skipped while its site says the same
    of it, and its links with it."""
    pages = pages_of(crawler, store, digest=Digest(), conditional=True)
    meta = {"bloom_delta_version": "2"}
    request = Request(PAGE.url, unmodified, meta=meta)
    pages.begin(request, Response(request.url, status=304)).is_complete = True
    assert pages.done(request) == [Row(pages.key_of(request), NOON, None, version_of(meta))]
    assert not pages.marks.verdicts.total()
    request = Request(LIST.url, meta=meta)
    outcome = pages.begin(request, LIST)
    outcome.is_complete = outcome.is_index_page = True
    (row,) = pages.done(request)
    assert (row.time, row.version) == (None, None)
    assert row.digest is not None


def test_what_an_errback_copies_is_not_of_its_page(tmp_path):
    """Neither a version nor a key; but a version that a spider writes is not taken away, though a
    page with the same is in its errback."""
    job = Job(tmp_path / "job").open()
    pages, _ = skipping_of(job.crawler, None)
    meta = {"bloom_delta_version": "3", "depth": 1, "download_timeout": 180.0}
    meta |= {"bloom_delta_key": "page", "bloom_fingerprint": "page"}
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
        assert given is own or ("bloom_delta_key" in request.meta) is kept
        assert given is own or ("bloom_fingerprint" in request.meta) is kept
    job.close()


@pytest.mark.parametrize(
    ("changes", "is_asked"),
    [
        ({}, True),
        ({"meta": {}}, False),  # of `start()`
        ({"meta": {"depth": 1, "bloom_attempts": 1}}, False),
        ({"flags": ["awaited"]}, False),
        ({"method": "HEAD"}, False),
        ({"body": b"x"}, False),
        *(({"headers": {name: "x"}}, False) for name in ("if-None-Match", "If-Match", "Range")),
    ],
)
def test_who_carries_validators(monkeypatch, changes, is_asked):
    """A GET without body, not failed, from the scheduler, of a callback, without conditions; and no
    copy that goes back from the downloader. Nothing is called if the page has not changed."""
    found = SimpleNamespace(validators_of=lambda request: [b'"tag"', b""])
    crawling = get_crawler(settings_dict={**OURS, "BLOOM_DELTA_CONDITIONAL": True})
    crawling.get_spider_middleware = lambda _: SimpleNamespace(skipping=found)
    scheduler = SimpleNamespace(has_dispatched=lambda request: "awaited" not in request.flags)
    monkeypatch.setattr(conditional, "scheduler_of", lambda _: scheduler)
    middleware = ConditionalMiddleware.from_crawler(crawling)
    request = PAGE.replace(errback=print, **changes)
    before, meta = dict(request.headers), {**request.meta}
    middleware.process_request(request)
    assert (request.headers.get("If-None-Match") == b'"tag"') is is_asked
    assert "If-Modified-Since" not in request.headers
    copy = request.copy()
    crawling.signals.send_catch_log(signals.request_scheduled, request=copy, spider=None)
    own = Response(request.url, status=304)
    assert middleware.process_response(request, own) is own
    for each in (copy, request):
        assert (dict(each.headers), each.meta) == (before, meta)
    middleware._response_received(own, request)
    assert (request.callback is None) is not is_asked
    assert (request.errback is None) is is_asked


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


class Sitemaps(SitemapSpider):
    name = "sitemaps"
    sitemap_alternate_links = True

    def parse(self, response):
        """Do nothing."""


def test_each_page_has_the_lastmod_of_its_entry():
    """As Scrapy reads it, from files that are read in turns; one without an entry, that of a
    page which links to it. Files are always fetched."""
    spider, url = Sitemaps.from_crawler(get_crawler(), kind="news"), "http://example.com"
    assert spider.kind == "news"
    link = f'<xhtml:link rel="alternate" href="{url}/b%20c/de"/>'
    dates = [f"<lastmod>2026-01-0{day}</lastmod>" for day in (1, 2)]

    def parsed(root, *entries):
        body = f'<{root} xmlns:xhtml="http://www.w3.org/1999/xhtml">{"".join(entries)}</{root}>'
        return iter(spider._parse_sitemap(XmlResponse(f"{url}/sitemap.xml", body=body.encode())))

    none = f"<loc>{url}/none</loc>"
    first = parsed("urlset", f"<url><loc>{url}/b c</loc>{dates[0]}{link}</url><url>{none}</url>")
    second = parsed("urlset", f"<url>{none}{dates[1]}</url>")
    found = [(each.url, each.meta) for each in (next(first), next(second), *first, *second)]
    versions = [{"bloom_delta_version": f"2026-01-0{day}"} for day in (1, 2)]
    assert found == [
        (f"{url}/b%20c", versions[0]),
        (f"{url}/none", versions[1]),
        (f"{url}/b%20c/de", versions[0]),
        (f"{url}/none", {}),
    ]
    links = "".join(link.replace("b%20c/", end) for end in ("", "e/"))
    names = (("en", dates[0]), ("de", dates[1]), ("e/de", ""))
    own = [f"<url><loc>{url}/{name}</loc>{date}{links}</url>" for name, date in names]
    found = {each.url: each.meta for each in parsed("urlset", *own)}
    assert found == {f"{url}/en": versions[0], f"{url}/de": versions[1], f"{url}/e/de": {}}
    (file,) = parsed("sitemapindex", f"<sitemap><loc>{url}/s.xml</loc>{dates[0]}</sitemap>")
    assert (file.url, file.meta) == (f"{url}/s.xml", {"bloom_delta": False})
    assert file.callback == spider._parse_sitemap


def test_a_scrapy_that_hides_how_it_reads_sitemaps_is_told(monkeypatch, caplog):
    """Pages have no version then."""
    scrapy_private.miss.cache_clear()
    monkeypatch.delattr(spiders.SitemapSpider, "_parse_sitemap")
    for _ in range(2):
        Sitemaps()
    scrapy_private.miss.cache_clear()
    (record,) = caplog.records
    assert "has no SitemapSpider._parse_sitemap: pages of sitemaps" in record.getMessage()
