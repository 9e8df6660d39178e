"""Crawls lists and details: the section "API" of the embedded site."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.http import HtmlResponse

from example.site import HOST
from scrapy_bloom import follow_new


class CatalogueSpider(Spider):
    """Yields an item for each entry of each module."""

    name = "catalogue"
    allowed_domains = [HOST]

    def __init__(self, start: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # None until the extension that serves the embedded site has set it.
        self.start_url = start

    async def start(self) -> AsyncIterator[Any]:
        assert self.start_url is not None
        yield Request(f"{self.start_url}api")

    def parse(self, response: HtmlResponse) -> Iterator[Any]:
        """The list of lists."""
        lists = "a[href*='module=']:not([href*='name='])"
        yield from follow_new(response, css=lists, callback=self.parse_list)

    def parse_list(self, response: HtmlResponse) -> Iterator[Any]:
        # `follow_new` is `response.follow_all` without the links to pages that are known
        details = "a[href*='module='][href*='name=']"
        yield from follow_new(response, css=details, callback=self.parse_detail)

    def parse_detail(self, response: HtmlResponse) -> Iterator[Any]:
        yield {"url": response.url, "title": response.css("h1::text").get()}
