"""The spider of the killed crawls, with every way in which Scrapy comes to a request."""

import asyncio
import random
import time
from pathlib import Path

import scrapy
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.task import deferLater

from tests.crawl.site import kind_of


async def pause(seconds):
    """Let the reactor go round."""
    if is_asyncio_available():
        await asyncio.sleep(seconds)
        return
    from twisted.internet import reactor

    await maybe_deferred_to_future(deferLater(reactor, seconds, lambda: None))


class TreeSpider(scrapy.Spider):
    """Walks the tree of `pages` pages; `kinds` are those that it makes use of."""

    name = "tree"
    later = 0
    """Half of the pages are delayed by up to so many seconds."""
    custom_settings = {  # noqa: RUF012
        "ITEM_PIPELINES": {"tests.crawl.spider.Pipeline": 1},
        "SPIDER_MIDDLEWARES": {"tests.crawl.spider.SpiderMiddleware": 1},
        "DOWNLOADER_MIDDLEWARES": {"tests.crawl.spider.DownloaderMiddleware": 1},
        "RETRY_TIMES": 3,
        "LOG_LEVEL": "INFO",
    }

    async def start(self):
        for number in (0, 1):
            yield Request(f"{self.site}/plain/{number}", dont_filter=True)

    def request(self, number, **options):
        """Return the request for page `number`, as its kind has it."""
        kind = kind_of(number, self.kinds)
        options.setdefault("callback", self.parse_later if self.slow else self.parse)
        options["errback"] = self.failed
        options["priority"] = number % 5 - 2
        options.setdefault("meta", {})["download_slot"] = f"slot-{number % 3}"
        options["meta"]["number"] = number
        if kind == "unserializable":
            options["meta"]["function"] = lambda: number
        if kind == "again":
            options["dont_filter"] = True
        if self.later and number % 2:
            # the second key stays, for the middleware that knows what is early
            pause = random.uniform(0, self.later)
            options["meta"].update(bloom_not_before=pause, due=time.time() + pause)
        if kind == "raising":
            options["callback"] = self.parse_and_raise
        if kind == "inline":
            options["callback"] = self.parse_inline
        return Request(f"{self.site}/{kind}/{number}", **options)

    def children(self, number):
        """Yield what hangs on page `number`: two of its own, and some known ones."""
        for child in (2 * number + 2, 2 * number + 3):
            if child < self.pages:
                yield self.request(child)
        for known in (number // 2, number // 3, (number * 7) % self.pages):
            if kind_of(known, self.kinds) != "again" and known > 1:
                yield self.request(known)

    def parse(self, response):
        number = response.json()
        if kind_of(number, self.kinds) == "item":
            yield {"number": number}
        yield from self.children(number)

    async def parse_later(self, response):
        number = response.json()
        if kind_of(number, self.kinds) == "item":
            yield {"number": number}
        for request in self.children(number):
            await pause(0.003)
            yield request

    def parse_and_raise(self, response):
        yield from self.children(response.json())
        raise RuntimeError("this callback always raises")

    async def parse_inline(self, response):
        # the same object again: the engine takes it out of those in progress meanwhile
        again = await self.crawler.engine.download_async(response.request)
        await pause(0.01)
        for request in self.children(again.json()):
            await pause(0.003)
            yield request

    def parse_leaf(self, response):
        pass

    def failed(self, failure):
        yield from self.children(failure.request.meta["number"])


class OfCrawler:
    """A component that knows its crawler."""

    def __init__(self, crawler):
        self.crawler = crawler

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)


class Pipeline(OfCrawler):
    """Asks for a page for each item, before or after a while."""

    async def process_item(self, item):
        if item["number"] % 16 == 7:
            await pause(0.1)
        url = f"{self.crawler.spider.site}/piped/{item['number']}"
        self.crawler.engine.crawl(Request(url, callback=self.crawler.spider.parse_leaf))
        return item


class SpiderMiddleware(OfCrawler):
    """Adds a request of its own to the output of some pages."""

    async def process_spider_output_async(self, response, result):
        async for thing in result:
            yield thing
        for thing in self.added(response):
            yield thing

    def process_spider_output(self, response, result):
        yield from result
        yield from self.added(response)

    def added(self, response):
        number = response.meta.get("number", 1)
        if number % 6 == 0:
            url = f"{self.crawler.spider.site}/extra/{number}"
            yield Request(url, callback=self.crawler.spider.parse_leaf)


class DownloaderMiddleware(OfCrawler):
    """Sends some requests elsewhere, and refuses others. Notes those that come too early."""

    def process_request(self, request):
        if request.meta.get("due", 0) > time.time():
            self.crawler.stats.inc_value("early")
            with Path(f"{self.crawler.settings['JOBDIR']}.early").open("a") as file:
                file.write(f"{request.url}\n")
        if "/swapped/" in request.url:
            return request.replace(url=request.url.replace("/swapped/", "/plain/"))
        if "/refused/" in request.url:
            raise IgnoreRequest("refused")
        return None
