"""The site and the spider of crawls that die, with every way in which Scrapy comes to a request.

`/<crawl>/<kind>/<number>` is a page of a binary tree. The kind tells site and spider what to make
of it.
"""

import asyncio
import random

import scrapy
from scrapy import Request
from scrapy.exceptions import IgnoreRequest
from scrapy.utils.asyncio import is_asyncio_available
from scrapy.utils.defer import maybe_deferred_to_future
from twisted.internet.task import deferLater

from tests.world.site import Reply, moved

DELAY = 0.01
KINDS = {
    # kind: every how many numbers
    "moved": 7,
    "flaky": 11,
    "gone": 13,
    "broken": 17,
    "unserializable": 10,
    "raising": 9,
    "item": 8,
    "again": 19,
    "inline": 23,
    "swapped": 29,
    "refused": 31,
    "late": 6,
}


def kind_of(number, kinds=None):
    """Return the kind of page `number`."""
    for kind, every in KINDS.items():
        if (kinds is None or kind in kinds) and number % every == every - 1:
            return kind
    return "plain"


async def answer(asked):
    """Answer after a short while, as the kind has it."""
    await asyncio.sleep(random.random() * DELAY)
    if asked.kind == "moved":
        return moved(asked.crawl, f"landed/{asked.number}")
    if asked.kind == "broken":
        return Reply(None)
    status = {"flaky": 503 if asked.times < 2 else 200, "gone": 404}.get(asked.kind, 200)
    return Reply(status, asked.number.encode())


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
    custom_settings = {  # noqa: RUF012
        "ITEM_PIPELINES": {f"{__name__}.Pipeline": 1},
        "SPIDER_MIDDLEWARES": {f"{__name__}.SpiderMiddleware": 1},
        "DOWNLOADER_MIDDLEWARES": {f"{__name__}.DownloaderMiddleware": 1},
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
        if kind == "late":
            options["meta"]["bloom_not_before"] = 0.1
        if kind in {"raising", "inline"}:
            options["callback"] = getattr(self, f"parse_{kind}")
        return Request(f"{self.site}/{kind}/{number}", **options)

    def children(self, number):
        """Yield what hangs on page `number`: two of its own, and some known ones."""
        for child in (2 * number + 2, 2 * number + 3):
            if child < self.pages:
                yield self.request(child)
        for known in (number // 2, number // 3, (number * 7) % self.pages):
            if kind_of(known, self.kinds) != "again" and known > 1:
                yield self.request(known)

    def found(self, number):
        """Yield what a callback finds on page `number`."""
        if kind_of(number, self.kinds) == "item":
            yield {"number": number}
        yield from self.children(number)

    def parse(self, response):
        yield from self.found(response.json())

    async def parse_later(self, response):
        for thing in self.found(response.json()):
            if isinstance(thing, Request):
                await pause(0.003)
            yield thing

    def parse_raising(self, response):
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
    """Asks for a page for the items of some pages, before or after a while."""

    async def process_item(self, item):
        number, spider = item["number"], self.crawler.spider
        if number % 16 == 7:
            await pause(0.1)
        if kind_of(number, spider.kinds) == "item" and item.get("part", "first") == "first":
            url = f"{spider.site}/piped/{number}"
            self.crawler.engine.crawl(Request(url, callback=spider.parse_leaf))
        return item


class SpiderMiddleware(OfCrawler):
    """Adds a request of its own to the output of some pages."""

    async def process_spider_output(self, response, result):
        async for thing in result:
            yield thing
        number, spider = response.meta.get("number", 1), self.crawler.spider
        if number % 6 == 0:
            yield Request(f"{spider.site}/extra/{number}", callback=spider.parse_leaf)


class DownloaderMiddleware:
    """Sends some requests elsewhere, and refuses others."""

    def process_request(self, request):
        if "/swapped/" in request.url:
            return request.replace(url=request.url.replace("/swapped/", "/plain/"))
        if "/refused/" in request.url:
            raise IgnoreRequest("refused")
        return None
