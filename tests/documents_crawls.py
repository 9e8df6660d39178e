"""Crawls with what the documents show, all in this process: each settings snippet gets a crawler,
each spider a site of three pages in the place of the one that it names. Prints why each crawl has
ended, how many items it gave, and which stats were set.

Reads JSON: the URL of a Redis, and the snippets by name."""

import json
import linecache
import sys
from importlib.util import find_spec
from types import SimpleNamespace

import scrapy
from scrapy.crawler import AsyncCrawlerProcess, Crawler
from scrapy.settings import Settings
from scrapy.utils.spider import iter_spider_classes

from tests.web_server import ServedInThread

SITE = "https://books.toscrape.com/"


class OnePage(scrapy.Spider):
    """A crawl of one page, which needs no network."""

    name = "shop"

    async def start(self):
        yield scrapy.Request("data:,")

    def parse(self, response):
        yield {"url": response.url}


class Pages(ServedInThread):
    """Three pages that link to each other, as lists of books do and as categories."""

    async def _answer(self, *_):
        links = b"".join(
            b'<a href="%b" title="x">x</a>' % link
            for link in (b"/", b"/catalogue/1", b"/catalogue/2")
        )
        body = (
            b'<title>A page</title><div class="side_categories"><ul><ul>%b</ul></ul></div>'
            b'<article class="product_pod"><h3><a href="/catalogue/1" title="A book">x</a></h3>'
            b"</article>" % links
        )
        return 200, {"Content-Type": "text/html"}, body


def main(url):
    given = json.load(sys.stdin)
    process = AsyncCrawlerProcess({"LOG_ENABLED": False})
    outcomes, crawlers = {}, {}
    for number, (name, text) in enumerate(given["settings"].items()):
        values = {}
        exec(text, values)
        settings = Settings({k: v for k, v in values.items() if k.isupper()}, "project")
        parts = [*settings.getdict("EXTENSIONS"), settings.get("SCHEDULER") or ""]
        if absent := [p for p in parts if p and find_spec(str(p).partition(".")[0]) is None]:
            outcomes[name] = f"without {absent[0]}"
            continue
        # a place and a server of its own, and no network
        mine = {"JOBDIR": f"job{number}", "LOG_ENABLED": False, "TELNETCONSOLE_ENABLED": False}
        mine |= {n: given["redis"] for n in ("BLOOM_REDIS_URL", "REDIS_URL") if settings.get(n)}
        mine |= {"BLOOM_REDIS_KEY": f"shop{number}", "SCHEDULER_QUEUE_KEY": f"queue{number}"}
        settings.setdict(mine, "cmdline")
        crawlers[name] = Crawler(OnePage, settings)
    for name, text in given["spiders"].items():
        values = {"__name__": name}
        text = text.replace(SITE, f"{url}/")
        linecache.cache[name] = len(text), None, text.splitlines(True), name  # Scrapy reads it
        exec(compile(text, name, "exec"), values)
        (spider,) = iter_spider_classes(SimpleNamespace(**values))
        settings = {"ADDONS": {"scrapy_bloom.Addon": 300}, "LOG_ENABLED": False}
        crawlers[name] = Crawler(spider, Settings({**settings, "TELNETCONSOLE_ENABLED": False}))
    for crawler in crawlers.values():
        process.crawl(crawler)
    process.start()
    for name, crawler in crawlers.items():
        reason, items = map(crawler.stats.get_value, ("finish_reason", "item_scraped_count"))
        outcomes[name] = f"{reason}, {items} items"
    stats = sorted({stat for crawler in crawlers.values() for stat in crawler.stats.get_stats()})
    print(json.dumps({"outcomes": outcomes, "stats": stats}))


if __name__ == "__main__":
    with Pages() as site:
        main(site.url)
