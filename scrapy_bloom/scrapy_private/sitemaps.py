"""Scrapy's spider for sitemaps: which entry of a file each request is made of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from copy import copy
from typing import TYPE_CHECKING, Any

from scrapy import spiders
from w3lib.url import safe_url_string

from . import get, miss

if TYPE_CHECKING:
    from scrapy import Request
    from scrapy.http import Response


class SitemapEntries(spiders.SitemapSpider):
    """Scrapy's SitemapSpider, which calls `made_of` for each request before it yields it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if get(spiders.SitemapSpider, "_parse_sitemap") is None:
            miss("SitemapSpider._parse_sitemap", "pages of sitemaps have no version")

    def made_of(self, request: Request, entry: dict[str, Any] | None) -> None:
        """Complete `request`, made of an `entry` of a sitemap, None for one for another file."""
        raise NotImplementedError

    def _parse_sitemap(self, response: Response) -> Iterable[Request]:
        entries: dict[str, dict[str, Any]] = {}

        def noted(found: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
            for entry in self.sitemap_filter(found):
                for url in (entry["loc"], *(entry.get("alternate") or ())):
                    with suppress(ValueError):
                        entries[safe_url_string(url)] = entry
                yield entry

        # callbacks of two files may run in turns, so each has a filter of its own
        parser = copy(self)
        vars(parser)["sitemap_filter"] = noted
        for request in super(SitemapEntries, parser)._parse_sitemap(response):
            if is_file := request.callback == parser._parse_sitemap:
                request.callback = self._parse_sitemap
            self.made_of(request, None if is_file else entries.get(request.url, {}))
            yield request
