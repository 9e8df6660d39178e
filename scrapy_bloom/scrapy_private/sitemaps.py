"""Scrapy's spider for sitemaps, which tells which entry of a file a request is made of."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any

from scrapy import spiders
from w3lib.url import safe_url_string

from . import get, miss

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response


class SitemapSpider(spiders.SitemapSpider):
    """Scrapy's SitemapSpider, with the `lastmod` of each page as its `bloom_delta_version`: of its
    own entry, else of the first that links to it. Sitemap files are always fetched."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if get(spiders.SitemapSpider, "_parse_sitemap") is None:
            miss("SitemapSpider._parse_sitemap", "pages of sitemaps have no version")

    def _parse_sitemap(self, response: Response) -> Iterable[Request]:
        versions: dict[str, str | None] = {}

        def noted(entries: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
            # the entry of a page may come after a link to it
            found = [*self.sitemap_filter(entries)]
            for entry in found:
                loc, version = entry["loc"], entry.get("lastmod")
                for url in (loc, *(entry.get("alternate") or ())):
                    with suppress(ValueError):
                        name = safe_url_string(url)
                        versions[name] = version if url == loc else versions.get(name, version)
            return found

        # callbacks of two files may run in turns, so each has a filter of its own
        parser = copy(self)
        vars(parser)["sitemap_filter"] = noted
        for request in super(SitemapSpider, parser)._parse_sitemap(response):
            if request.callback == parser._parse_sitemap:
                request.callback = self._parse_sitemap
                request.meta["bloom_delta"] = False
            elif version := versions.get(request.url):
                request.meta["bloom_delta_version"] = version
            yield request
