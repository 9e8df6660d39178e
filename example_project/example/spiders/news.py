"""Crawls the news of the embedded site, again and again: only what earlier crawls have not."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.http import HtmlResponse

from example.news import REWRITTEN
from example.site import HOST


class NewsSpider(Spider):
    """Yields an item for each article; lists are fetched by each crawl, articles once."""

    name = "news"
    allowed_domains = [HOST]
    custom_settings = {
        "BLOOM_DELTA": "item",
        "BLOOM_DELTA_DAYS": 30,
        "BLOOM_DELTA_DIGEST": True,
    }

    def __init__(self, start: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # None until the extension that serves the embedded site has set it.
        self.start_url = start

    async def start(self) -> AsyncIterator[Any]:
        assert self.start_url is not None
        yield Request(f"{self.start_url}news")

    def parse(self, response: HtmlResponse) -> Iterator[Any]:
        yield from response.follow_all(css="a[href^='/news/']", callback=self.parse_list)

    def parse_list(self, response: HtmlResponse) -> Iterator[Any]:
        for link in response.css("a[href^='/news/']::attr(href)").getall():
            request = response.follow(link, callback=self.parse_article)
            if int(link.rpartition("/")[2]) in REWRITTEN:
                request.meta["bloom_delta"] = False  # fetched by each crawl
            yield request

    def parse_article(self, response: HtmlResponse) -> Iterator[Any]:
        yield {"url": response.url, "title": response.css("h1::text").get()}
