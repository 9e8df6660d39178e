"""Starts a crawler with the settings of each snippet of the documents, all in this process, and
prints why each has ended and which stats were set. Reads JSON: the URL of a Redis, and snippets."""

import json
import sys
from importlib.util import find_spec

import scrapy
from scrapy.crawler import AsyncCrawlerProcess, Crawler
from scrapy.settings import Settings


class Spider(scrapy.Spider):
    """A crawl of one page, which needs no network."""

    name = "shop"

    async def start(self):
        yield scrapy.Request("data:,")

    def parse(self, response):
        yield {"url": response.url}


def main():
    given = json.load(sys.stdin)
    process = AsyncCrawlerProcess({"LOG_ENABLED": False})
    reasons, crawlers = {}, []
    for number, (name, text) in enumerate(given["snippets"]):
        values = {}
        exec(text, values)
        settings = Settings({k: v for k, v in values.items() if k.isupper()}, "project")
        parts = [*settings.getdict("EXTENSIONS"), settings.get("SCHEDULER") or ""]
        if absent := [p for p in parts if p and find_spec(str(p).partition(".")[0]) is None]:
            reasons[name] = f"without {absent[0]}"
            continue
        # a place and a server of its own, and no network
        mine = {"JOBDIR": f"job{number}", "LOG_ENABLED": False, "TELNETCONSOLE_ENABLED": False}
        if settings.get("BLOOM_REDIS_URL"):
            mine["BLOOM_REDIS_URL"] = given["redis"]
        if settings.get("REDIS_URL"):
            mine["REDIS_URL"] = given["redis"]
        mine["BLOOM_REDIS_KEY"] = f"{settings.get('BLOOM_REDIS_KEY') or 'shop'}{number}"
        settings.setdict(mine, "cmdline")
        crawler = Crawler(Spider, settings)
        crawlers.append((name, crawler))
        process.crawl(crawler)
    process.start()
    for name, crawler in crawlers:
        reasons[name] = str(crawler.stats.get_value("finish_reason"))
    stats = sorted({stat for _, crawler in crawlers for stat in crawler.stats.get_stats()})
    print(json.dumps({"reasons": reasons, "stats": stats}))


if __name__ == "__main__":
    main()
