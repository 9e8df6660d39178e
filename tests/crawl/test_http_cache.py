"""Scrapy's HTTP cache in crawls that are killed while it stores a page."""

import json
import signal

import pytest

from tests.small_site import Scrapy

SPIDER = '''
import os
import signal

import scrapy
from scrapy.downloadermiddlewares.httpcache import HttpCacheMiddleware
from scrapy.extensions.httpcache import FilesystemCacheStorage

# its path and not the class, which Scrapy 2.14 does not know for the one of its own settings
CACHE = "scrapy.downloadermiddlewares.httpcache.HttpCacheMiddleware"


class Storage(FilesystemCacheStorage):
    """Dies where KILLED names a file, before that is written, or when it has begun."""

    def __init__(self, settings):
        super().__init__(settings)
        self._opens, self._open = self._open, self._open_or_die

    def _open_or_die(self, path, mode):
        if "w" in mode and str(path).endswith(os.environ.get("KILLED", "none")):
            if "BEGUN" in os.environ:
                open(path, mode)
            os.kill(os.getpid(), signal.SIGKILL)
        return self._opens(path, mode)


class Late(HttpCacheMiddleware):
    """Has its storage when the spider opens."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.opened, self.storage = self.storage, None

    def spider_opened(self, spider):
        self.storage = self.opened
        super().spider_opened(spider)


class Site:
    def process_request(self, request, spider=None):
        links = "<a href=/1></a><a href=/2></a>" if request.url.endswith("/") else ""
        return scrapy.http.HtmlResponse(request.url, body=f"<html>{links}".encode())


class CachingSpider(scrapy.Spider):
    name = "caching"
    start_urls = ["http://site.example/"]
    custom_settings = {
        "DOWNLOADER_MIDDLEWARES": {Site: 1000, CACHE: None, Late: 900}
        if "LATE" in os.environ
        else {Site: 1000},
        "HTTPCACHE_ENABLED": True,
        "HTTPCACHE_STORAGE": Storage,
        "HTTPCACHE_DIR": os.path.abspath("cache"),
    }

    def parse(self, response):
        yield {"url": response.url}
        yield from response.follow_all(css="a")
'''


@pytest.mark.parametrize(
    ("first", "file", "more"),
    [
        ("job", "response_headers", {"BEGUN": "1"}),
        ("job", "response_body", {"BEGUN": "1", "LATE": "1"}),
        ("stock", "response_body", {"BEGUN": "1"}),
        ("stock", "request_headers", {}),
    ],
)
def test_a_page_that_a_kill_has_cut_short_in_the_cache_is_asked_again(tmp_path, first, file, more):
    """By a crawl with the add-on, whichever crawl has left it; a whole one is not."""
    (tmp_path / "spider.py").write_text(SPIDER)
    ours = {"ADDONS": '{"scrapy_bloom.Addon": 300}', "DUPEFILTER_CLASS": None, "JOBDIR": "job"}
    stock = {"DUPEFILTER_CLASS": None}
    killed = {"KILLED": file, **more}
    arguments = "runspider", "spider.py", "-o", "items.jsonl"
    settings = ours if first == "job" else stock
    crawl = Scrapy(tmp_path, *arguments, environment=killed, **settings).end()
    assert crawl.status == -signal.SIGKILL, crawl.log
    (tmp_path / "items.jsonl").unlink(missing_ok=True)
    late = {"LATE": "1"} if "LATE" in more else {}
    crawl = Scrapy(tmp_path, *arguments, environment=late, **ours).end()
    lines = (tmp_path / "items.jsonl").read_text().splitlines()
    urls = sorted(json.loads(line)["url"].partition("example")[2] for line in lines)
    assert urls == ["/", "/1", "/2"], crawl.log
    assert crawl.stat("httpcache/hit") is None
    again = Scrapy(tmp_path, *arguments, **{**ours, "JOBDIR": "other"}).end()
    assert again.stat("httpcache/hit") == "3", again.log
