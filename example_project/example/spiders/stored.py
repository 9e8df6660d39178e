"""Crawls the glossary of the embedded site into an SQLite database, which a kill does not harm."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

from scrapy import Request, Spider
from scrapy.http import HtmlResponse

from example.site import HOST
from scrapy_bloom import follow_new


class StoredSpider(Spider):
    """Yields an item for each term; the pipeline stores them, many at once."""

    name = "stored"
    allowed_domains = [HOST]
    custom_settings = {"ITEM_PIPELINES": {"example.pipelines.SQLitePipeline": 300}}

    def __init__(self, start: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # None until the extension that serves the embedded site has set it.
        self.start_url = start

    async def start(self) -> AsyncIterator[Any]:
        assert self.start_url is not None
        yield Request(f"{self.start_url}glossary")

    def parse(self, response: HtmlResponse) -> Iterator[Any]:
        yield from follow_new(response, css="a[href*='/glossary/']", callback=self.parse_term)

    def parse_term(self, response: HtmlResponse) -> Iterator[Any]:
        yield {"url": response.url, "title": response.css("h1::text").get()}
