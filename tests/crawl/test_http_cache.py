"""Scrapy's HTTP cache beside a job, when a kill has cut short what it stores."""

from types import SimpleNamespace

import pytest
from scrapy import signals
from scrapy.downloadermiddlewares.httpcache import HttpCacheMiddleware
from scrapy.http import HtmlResponse

from tests.crawl.engine import DURABLE, STOCK, Job, request


class Late(HttpCacheMiddleware):
    """Has its storage when the spider opens."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.opened, self.storage = self.storage, None

    def spider_opened(self, spider):
        self.storage = self.opened
        super().spider_opened(spider)


@pytest.mark.parametrize("first", [DURABLE, STOCK])
@pytest.mark.parametrize("last", ["pickled_meta", "response_body", "request_headers"])
def test_a_page_that_a_kill_has_cut_short_in_the_cache_is_asked_again(
    tmp_path, opened, monkeypatch, first, last
):
    """By a crawl with a durable scheduler, whichever crawl has left it; a whole one is not."""
    options = {"HTTPCACHE_ENABLED": True, "HTTPCACHE_DIR": str(tmp_path / "cache")}
    page = HtmlResponse("http://example.com/page", body=b"<p>page</p>")

    def open_cache(name, scheduler):
        """Open a job beside a cache; return its storage, when the crawl has started, and spider."""
        job = opened(Job(tmp_path / name, scheduler=scheduler, **options), later=True)
        middleware = Late.from_crawler(job.crawler)
        job.engine.downloader.middleware = SimpleNamespace(middlewares=[middleware])
        job.open()
        job.crawler.signals.send_catch_log(signals.spider_opened, spider=job.spider)
        job.crawler.signals.send_catch_log(signals.engine_started)
        return middleware.storage, job.spider

    cache, spider = open_cache("first", first)
    if first != STOCK:
        cache.store_response(spider, request("page"), page)  # it is renewed
    open_file = cache._open

    def open_or_die(path, mode):
        open_file(path, mode).close()
        if str(path).endswith(last):
            raise KeyboardInterrupt
        return open_file(path, mode)

    monkeypatch.setattr(cache, "_open", open_or_die)
    with pytest.raises(KeyboardInterrupt):
        cache.store_response(spider, request("page"), page)
    cache, spider = open_cache("second", DURABLE)
    assert cache.retrieve_response(spider, request("page")) is None
    cache.store_response(spider, request("page"), page)
    assert cache.retrieve_response(spider, request("page")).body == page.body


def test_a_downloader_without_middlewares_has_no_cache(make):
    job = make(HTTPCACHE_ENABLED=True)
    told = job.crawler.signals.send_catch_log(signals.spider_opened, spider=job.spider)
    assert {result for _, result in told} == {None}
