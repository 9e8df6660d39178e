"""Crawls the embedded site, or the one that `-a start=URL` names."""

from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import urlencode, urlsplit

from scrapy import Request, Spider
from scrapy.http import HtmlResponse, Response
from scrapy.linkextractors import LinkExtractor

from example.site import HOST


class SiteSpider(Spider):
    """Follows every link of one host, and yields an item for each page."""

    name = "site"

    def __init__(self, start: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        # None until the extension that serves the embedded site has set it.
        self.start_url = start
        host = urlsplit(start).hostname if start else HOST
        if not host:
            raise ValueError(f"start={start!r} is not a URL: give it as http://host/path")
        self.allowed_domains = [host]
        self.links = LinkExtractor()

    async def start(self) -> AsyncIterator[Any]:
        assert self.start_url is not None
        # Without dont_filter: what a resumed job has fetched already is not fetched again.
        yield Request(self.start_url)

    def parse(self, response: Response) -> Iterator[Any]:
        if not isinstance(response, HtmlResponse):
            return
        yield {
            "url": response.url,
            "status": response.status,
            "title": response.css("title::text").get(),
        }
        for link in self.links.extract_links(response):
            yield Request(link.url)
        # Other sites have forms that change things, so only those marked for it are sent.
        for form in response.css("form.crawl"):
            fixed = {field.attrib["name"]: field.attrib["value"] for field in form.css("input")}
            for option in form.css("option::text").getall():
                yield response.follow(
                    form.attrib["action"],
                    method="POST",
                    headers={"Content-Type": "application/x-www-form-urlencoded"},
                    body=urlencode({**fixed, "topic": option}),
                )
