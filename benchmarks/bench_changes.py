"""What a second crawl asks for when one page in a hundred has changed: without this package, by the
versions in a sitemap, and by validators.

    python benchmarks/bench_changes.py [--pages N] [--size N]
"""

import tempfile
from email.utils import formatdate

from crawls import OURS, crawl
from scrapy import Request, Spider
from scrapy.spiders import SitemapSpider as Stock
from sidebyside import parser_of

from scrapy_bloom import SitemapSpider
from tests.web_server import HEADERS, ServedInThread

DELTA = {**OURS, "BLOOM_DELTA": "item"}


class Site(ServedInThread):
    """Pages of `size` bytes, a sitemap and an index page; on the second day one in 100 changes."""

    def __init__(self, pages, size):
        self.pages = pages
        self.size = size
        self.day = 1

    async def _answer(self, method, path, _):
        name = path.strip("/")
        if name in {"sitemap.xml", "index"}:
            each = "<url><loc>{}</loc><lastmod>2026-01-{:02}</lastmod></url>"
            each = each if name == "sitemap.xml" else '<a href="{}"></a>'
            links = (
                each.format(f"{self.url}/{page}", self._since(page)) for page in range(self.pages)
            )
            kind = "application/xml" if name == "sitemap.xml" else "text/html"
            return 200, {"Content-Type": kind}, f"<urlset>{''.join(links)}</urlset>".encode()
        since = self._since(int(name))
        date = formatdate(since * 86400, usegmt=True)
        headers = {"ETag": f'"{since}"', "Last-Modified": date, "Content-Type": "text/html"}
        if HEADERS.get().get("if-none-match") == headers["ETag"]:
            return 304, headers, b""
        return 200, headers, b"<html>".ljust(self.size)

    def _since(self, page):
        return self.day if page % 100 == 0 else 1


class Pages:
    """Yields an item for each page."""

    def parse(self, response):
        yield {"url": response.url}


class Versions(Pages, SitemapSpider):
    """Has the pages from the sitemap."""

    name = "versions"


class AllPages(Pages, Stock):
    """The same with Scrapy alone."""

    name = "all"


class Validators(Pages, Spider):
    """Has the pages from the index page."""

    name = "validators"

    async def start(self):
        yield Request(f"{self.site}/index", self.parse_index)

    def parse_index(self, response):
        yield from response.follow_all(css="a")


WAYS = {
    "Scrapy, sitemap": (AllPages, {}),
    "versions in the sitemap": (Versions, DELTA),
    "validators, marks have expired": (
        Validators,
        {**DELTA, "BLOOM_DELTA_DAYS": 1e-6, "BLOOM_DELTA_CONDITIONAL": True},
    ),
}


def main() -> None:
    options = parser_of(__doc__, pages=1000, size=(20_000, "bytes of a page")).parse_args()
    print(f"{options.pages:,} pages of {options.size:,} bytes, of which one in a hundred changes")
    for way, (spider, settings) in WAYS.items():
        found = {}
        with tempfile.TemporaryDirectory() as folder, Site(options.pages, options.size) as site:
            for site.day in (1, 2):
                settings = {**settings, "BLOOM_DELTA_DIR": f"{folder}/store"}
                urls = [f"{site.url}/sitemap.xml"]
                found[site.day] = crawl(spider, settings, site=site.url, sitemap_urls=urls)
        first, second = found.values()
        nbytes = (each["downloader/response_bytes"] for each in (second, first))
        second_bytes, first_bytes = nbytes
        print(
            f"  {way}: the second crawl has {second['item_scraped_count']:,} items of"
            f" {second['downloader/request_count']:,} requests, {second_bytes:,} bytes:"
            f" {second_bytes / first_bytes:.3f} of the first"
        )


if __name__ == "__main__":
    main()
