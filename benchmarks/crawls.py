"""Whole crawls in forked processes, of a folder, the demo's site, or answers made in them."""

import asyncio
import gc
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scrapy import Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor
from sidebyside import forked, seconds_of

from scrapy_bloom import NewLinkExtractor, follow_new
from tests.web_server import ServedInThread
from tests.world.runner import preload
from tests.world.tree import OfCrawler

preload()  # once, for all forks

OURS = {"ADDONS": {"scrapy_bloom.Addon": 300}}
SETTINGS = {
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "LOG_LEVEL": "ERROR",
    "CONCURRENT_REQUESTS": 16,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
    "USER_AGENT": "scrapy-bloom-example",  # the demo's site knows it
}
BREADTH_FIRST = {  # so that a limit cuts the same pages off, whoever crawls
    "DEPTH_PRIORITY": 1,
    "SCHEDULER_DISK_QUEUE": "scrapy.squeues.PickleFifoDiskQueue",
    "SCHEDULER_MEMORY_QUEUE": "scrapy.squeues.FifoMemoryQueue",
}
COUNTED = (
    *("response_received_count", "item_scraped_count", "dupefilter/filtered"),
    *("downloader/request_count", "downloader/response_bytes"),
)
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
LINKS = 'a:not([href^="mailto:"])'  # which are errors


class Answers(OfCrawler):
    """A download handler that answers at once; once the spider's `filled` is set, if it has one,
    but for requests with a flag."""

    lazy = False

    async def download_request(self, request, spider=None):
        filled = getattr(self.crawler.spider, "filled", None)
        if filled and not request.flags:
            await filled.wait()
            await asyncio.sleep(0.001)
        return HtmlResponse(request.url, body=b"<html></html>", request=request)

    async def close(self):
        pass


IN_PROCESS = {"DOWNLOAD_DELAY": 0, "DOWNLOAD_HANDLERS": {"http": Answers, "https": Answers}}


class LinkSpider(Spider):
    """Yields an item for each page, and follows its links in one of the usual ways."""

    name = "links"

    def parse(self, response):
        if isinstance(response, HtmlResponse):
            yield {"url": response.url, "title": response.css("title::text").get()}
            yield from getattr(self, self.way)(response)

    def follow_all(self, response):
        return response.follow_all(css=LINKS)

    def follow_new(self, response):
        return follow_new(response, css=LINKS)

    def link_extractor(self, response, extractor=LinkExtractor()):  # noqa: B008 - one for all
        return response.follow_all(extractor.extract_links(response))

    def new_link_extractor(self, response, extractor=NewLinkExtractor()):  # noqa: B008
        return response.follow_all(extractor.extract_links(response))


def crawl(spider: type, settings: dict, *, job: bool = True, **attributes: Any) -> Any:
    """Crawl in a forked process, with a new JOBDIR or without; return what the spider has handed
    to its `answer`, or the stats COUNTED and `seconds` of CPU time."""

    def work(answer):
        gc.unfreeze()  # a collection takes as long as in any crawl
        process = AsyncCrawlerProcess({**SETTINGS, **settings, **place})
        crawler = process.create_crawler(spider)
        process.crawl(crawler, answer=answer, **attributes)
        process.start()
        answer({name: crawler.stats.get_value(name, 0) for name in COUNTED})

    with tempfile.TemporaryDirectory() as name:
        place = {"JOBDIR": f"{name}/job"} if job else {}
        found, used = forked(f"a crawl with {settings}", work)
    return {"seconds": seconds_of(used), **found}


def crawl_links(site: str, way: str, settings: dict, pages: int = 0, **options: Any) -> dict:
    """Crawl so many pages of a site, or all, breadth first; add milliseconds a page as `each`."""
    settings = {**BREADTH_FIRST, "CLOSESPIDER_PAGECOUNT": pages, **settings}
    host = site.split("/")[2].partition(":")[0]
    found = crawl(
        LinkSpider, settings, way=way, start_urls=[site], allowed_domains=[host], **options
    )
    return {**found, "each": found["seconds"] / found["response_received_count"] * 1e3}


def open_files() -> int:
    """Raise the limit of open files; return it: Scrapy's disk queues have one a slot."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most


class Folder(ServedInThread):
    """Serves a folder; `start` is the page to start at, the one with the most links."""

    def __init__(self, folder: Path) -> None:
        page = max(folder.rglob("index.html"), key=lambda page: page.read_bytes().count(b"<a "))
        self._folder = page.parent

    @property
    def start(self) -> str:
        return f"{self.url}/index.html"

    async def _answer(self, method: str, path: str, body: str) -> tuple[int, dict, bytes]:
        page = self._folder / path.partition("?")[0].lstrip("/")
        found = page.suffix in TYPES and page.is_file()
        kind = {"Content-Type": TYPES.get(page.suffix, "text/plain")}
        return (200, kind, page.read_bytes()) if found else (404, kind, b"")


@contextmanager
def serve_demo() -> Iterator[str]:
    """Serve the demo's site; yield its URL."""
    import harness

    with tempfile.TemporaryDirectory() as folder, harness.serve(Path(folder)) as site:
        yield site.url
