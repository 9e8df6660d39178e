"""What is skipped and what counts as done, on an engine that only keeps its books."""

import os
from types import SimpleNamespace

import pytest
from scrapy import Request
from scrapy.http import Response

from scrapy_bloom.delta.marks import Marks, Temporary
from scrapy_bloom.delta.memory import Memory
from scrapy_bloom.delta.pages import Pages
from scrapy_bloom.delta.skipping import Skipping
from scrapy_bloom.delta.slices import Shape

HOUR = 3600.0
NOON = 1_800_000_000.0

pytestmark = pytest.mark.skipif(os.name != "posix", reason="filter files need Linux or macOS")


@pytest.fixture
def crawler(make_dupefilter):
    """A crawler whose scheduler has a dupefilter of ours."""
    dupefilter = make_dupefilter()
    dupefilter.crawler.engine.scheduler = SimpleNamespace(df=dupefilter)
    return dupefilter.crawler


def test_a_page_is_skipped_until_its_slice_expires(crawler, tmp_path):
    """By its URL, too, where that is remembered from the first time."""
    now = [NOON]
    memory = Memory(tmp_path / "memory", Shape(period=8 * HOUR), lambda: now[0])
    pages = Pages(crawler, Marks(Temporary()), "item", memory.clock)
    request = Request("http://example.com/page")
    memory.add([(pages.key_of(request), NOON)])
    memory.open()
    delta = SimpleNamespace(memory=memory, pages=pages, marks=pages.marks)
    skipping = Skipping(crawler, delta, recent_urls=100)
    page = Response("http://example.com/list", request=Request("http://example.com/list"))
    for hours, is_done in ((0, True), (1, True), (9, True), (9.1, False), (20, False)):
        now[0] = NOON + hours * HOUR
        assert skipping.is_done(request.copy(), page) is is_done
    memory.close()


@pytest.mark.parametrize("reason", [None, "callback", "item", "download/timeout", "of the spider"])
@pytest.mark.parametrize("mode", ["item", "success", "response"])
def test_a_page_that_has_failed_is_not_done(crawler, mode, reason):
    """Under `response` what has failed after the response is."""
    pages = Pages(crawler, Marks(Temporary()), mode, lambda: NOON)
    request = Request("http://example.com/page")
    outcome = pages.begin(request)
    outcome.is_complete, outcome.items = True, 1
    of_the_page = mode == "response" and reason in ("callback", "item")
    assert bool(pages.done(request, reason)) is (reason is None or of_the_page)
