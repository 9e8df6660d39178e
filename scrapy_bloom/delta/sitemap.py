"""A spider that fetches of a sitemap what its `lastmod` says is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..scrapy_private.sitemaps import SitemapEntries
from .settings import VERSION, WISH

if TYPE_CHECKING:
    from scrapy import Request


class SitemapSpider(SitemapEntries):
    """Scrapy's SitemapSpider, with the `lastmod` of each page as its `bloom_delta_version`. Sitemap
    files are always fetched."""

    def made_of(self, request: Request, entry: dict[str, Any] | None) -> None:
        """Give `request` the version of its `entry`, if there is one; without an entry, have each
        crawl fetch it. A subclass may choose another version."""
        if entry is None:
            request.meta[WISH] = False
        elif version := entry.get("lastmod"):
            request.meta[VERSION] = version
