"""What is skipped and what counts as done, on an engine that only keeps its books."""

import os
import time
from contextlib import closing
from types import SimpleNamespace

import pytest
from scrapy import Request, signals
from scrapy.http import Response
from scrapy.utils.request import fingerprint

from scrapy_bloom.delta import skipping as skipping_module
from scrapy_bloom.delta.file_store import FileDeltaStore
from scrapy_bloom.delta.marks import Marks, Temporary
from scrapy_bloom.delta.middleware import DeltaMiddleware
from scrapy_bloom.delta.pages import Pages
from scrapy_bloom.delta.settings import DeltaSettings, Lifetime
from scrapy_bloom.delta.skipping import Skipping
from scrapy_bloom.errors import BloomError, FilterFileError
from tests.crawl.engine import Job
from tests.crawl.feed_jobs import FeedJob
from tests.delta import started

HOUR = 3600.0
NOON = 1_800_000_000.0

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")


@pytest.fixture
def crawler(make_dupefilter):
    """A crawler whose scheduler has a dupefilter of ours."""
    dupefilter = make_dupefilter()
    dupefilter.crawler.engine.scheduler = SimpleNamespace(df=dupefilter)
    return dupefilter.crawler


LIST = Response("http://example.com/list", request=Request("http://example.com/list"))


def skipping_of(crawler, store):
    """Return the pages of a crawl with that store, and what decides which it skips."""
    pages = Pages(crawler, Marks(Temporary()), DeltaSettings(mode="item"), store)
    return pages, Skipping(crawler, pages, url_cache=100)


def test_a_page_is_skipped_until_its_mark_expires(crawler, tmp_path):
    """By its URL, too, where that is remembered from the first time."""
    now = [NOON]
    memory = FileDeltaStore(tmp_path / "memory", Lifetime(8 * HOUR), lambda: now[0])
    pages, skipping = skipping_of(crawler, memory)
    request = Request("http://example.com/page")
    memory.add([(pages.key_of(request), NOON)])
    memory.open()
    for hours, is_done in ((0, True), (1, True), (8, True), (8.1, False), (20, False)):
        now[0] = NOON + hours * HOUR
        assert skipping.is_done(request.copy(), LIST) is is_done
    memory.close()


def test_a_page_that_is_asked_for_once_more_keeps_its_key(crawler, tmp_path):
    """A callback that sends its own request again copies its meta, and means that page."""
    pages, skipping = skipping_of(crawler, FileDeltaStore(tmp_path, Lifetime()))
    meta = {"bloom_delta_key": "page", "download_latency": 0.1}
    request = Request("http://example.com/page", meta=meta)
    page = Response(request.url, request=request)
    again = request.replace(dont_filter=True)
    assert not skipping.is_done(again, page)
    assert pages.key_of(again) == pages.key_of(request)
    for what in ({"url": f"{request.url}/2"}, {"method": "POST"}, {"body": b"x"}):
        other = request.replace(**what)
        assert not skipping.is_done(other, page)
        assert pages.key_of(other) != pages.key_of(request)


def test_a_store_that_fails_is_left_alone_for_a_while(crawler, caplog, monkeypatch):
    """Each look may wait for it, and the crawl with that; then it is asked again."""
    asked = []

    class Locked:
        is_empty = False

        def known_until(self, key, period):
            asked.append(key)
            raise FilterFileError("database is locked")

    _, skipping = skipping_of(crawler, Locked())
    requests = [Request(f"http://example.com/{number}") for number in range(4)]
    assert not any(skipping.is_done(each, LIST) for each in requests)
    assert len(asked) == 1
    monkeypatch.setattr(skipping_module, "PAUSE", 0.0)
    skipping._asked_from = 0.0
    assert not any(skipping.is_done(each, LIST) for each in requests)
    assert len(asked) == 5
    (record,) = caplog.records
    assert "database is locked. Nothing is skipped for a minute" in record.getMessage()


@pytest.mark.parametrize("reason", [None, "callback", "item", "download/timeout", "of the spider"])
@pytest.mark.parametrize("mode", ["item", "success", "response"])
def test_a_page_that_has_failed_is_not_done(crawler, tmp_path, mode, reason):
    """Under `response` what has failed after the response is."""
    pages = Pages(
        crawler, Marks(Temporary()), DeltaSettings(mode=mode), FileDeltaStore(tmp_path, Lifetime())
    )
    request = Request("http://example.com/page")
    outcome = pages.begin(request)
    outcome.is_complete, outcome.items = True, 1
    of_the_page = mode == "response" and reason in ("callback", "item")
    assert bool(pages.done(request, reason)) is (reason is None or of_the_page)


def test_a_store_that_cannot_be_written_to_is_refused(monkeypatch, tmp_path):
    """At the start, not at the end of the crawl; a test crawl may read it."""
    (tmp_path / "memory").mkdir()
    settings = {"BLOOM_DELTA": "item", "BLOOM_DELTA_DIR": str(tmp_path / "memory" / "of" / "it")}
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(BloomError, match=r"memory cannot be written to, .* BLOOM_DELTA_READ_ONLY"):
        started(**settings)
    started(**settings, BLOOM_DELTA_READ_ONLY=True)
    assert [*tmp_path.rglob("*")] == [tmp_path / "memory"]


class DeltaJob(FeedJob):
    """A job with feeds as Scrapy does them, of which a page is fetched."""

    def crawl(self, known=()):
        """Crawl the page, whose callback yields what is `known`, to the end of the spider."""
        middleware = DeltaMiddleware.from_crawler(self.crawler)
        self.engine.scraper.spidermw.middlewares = [middleware]
        Job.open(self)
        self.engine._slot.scheduler = self.scheduler
        self.send(signals.spider_opened)
        self.start()
        page = self.page("page")
        response = self.response(page)
        response.request = page
        middleware.process_spider_input(response)
        assert list(middleware.process_spider_output(response, known)) == []
        self.item({"n": 1}, response)
        self.done(page)
        self.close()


@pytest.mark.parametrize("jobdir", [{}, {"JOBDIR": None}])
@pytest.mark.parametrize("feeds", [{"items.jl": "jsonlines"}, {}])
def test_marks_are_in_the_memory_when_the_spider_and_its_feeds_are_closed(jobdir, feeds, tmp_path):
    """Without the signal engine_stopped, which Scrapy may not send."""
    settings = {"BLOOM_DELTA": "item", "BLOOM_DELTA_DIR": str(tmp_path / "memory"), **jobdir}
    feeds = {tmp_path / name: options for name, options in feeds.items()}
    job = DeltaJob(tmp_path, feeds, BLOOM_DURABLE_FEEDS=False, **settings)
    try:
        job.crawl()
    finally:
        job.drop()
    memory = FileDeltaStore(tmp_path / "memory", Lifetime())
    memory.look()
    assert memory.holds == "1 page"


def test_a_skipped_request_is_told_of(tmp_path):
    """By Scrapy's signal for it, and by a stat."""
    known, dropped = Request("http://example.com/known"), []
    with closing(FileDeltaStore(tmp_path / "memory", Lifetime())) as memory:
        memory.add([(fingerprint(known), time.time())])
    settings = {"BLOOM_DELTA": "item", "BLOOM_DELTA_DIR": str(tmp_path / "memory")}
    job = DeltaJob(tmp_path, {}, JOBDIR=None, **settings)

    def drop(request, spider):
        dropped.append((request, spider))

    job.crawler.signals.connect(drop, signals.request_dropped)
    try:
        job.crawl([known])
    finally:
        job.drop()
    assert dropped == [(known, job.spider)]
    assert job.stat("bloom/delta_skipped") == 1
