"""One crawl beside other people's components, in a process of its own: `bench_crawl.py --with`.

    PYTHONPATH=TREE python tests/benchmarks/company.py JSON

imports scrapy_bloom from TREE, and prints the CPU seconds of the crawl alone.
"""

from __future__ import annotations

import json
import random
import resource
import sys
import tempfile
from pathlib import Path

from scrapy import Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.utils.request import fingerprint

PAGES, LINKS = 300, 100
SETTINGS = {
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "LOG_LEVEL": "WARNING",
    "CONCURRENT_REQUESTS": 16,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
}


class UnknownMiddleware:
    """Looks at what a callback yields, as a project's own middleware would."""

    def process_spider_output(self, response, result):
        yield from result

    async def process_spider_output_async(self, response, result):
        async for thing in result:
            yield thing


class UnknownFingerprinter:
    """Says nothing about what its fingerprints depend on."""

    def fingerprint(self, request):
        return fingerprint(request, include_headers=["X-Id"])


def _rules() -> str:
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        rule = {"urlPattern": {"include": ["127.0.0.1"]}, "processor": "queryRemoval"}
        json.dump([{"order": 1, "args": ["sid"], **rule}], file)
    return file.name


WITH = {
    "nothing": dict,
    "scrapy-poet": lambda: {"ADDONS": {"scrapy_poet.Addon": 100}},
    "page-params": lambda: WITH["scrapy-poet"](),
    "duplicate-url-discarder": lambda: {
        "ADDONS": {"duplicate_url_discarder.Addon": 100},
        "DUD_LOAD_RULE_PATHS": [_rules()],
    },
    "spidermon": lambda: {
        "SPIDERMON_ENABLED": True,
        "EXTENSIONS": {"spidermon.contrib.scrapy.extensions.Spidermon": 500},
    },
    "unknown-middleware": lambda: {"SPIDER_MIDDLEWARES": {UnknownMiddleware: 500}},
    "unknown-fingerprinter": lambda: {"REQUEST_FINGERPRINTER_CLASS": UnknownFingerprinter},
}


class CompanySpider(Spider):
    """Yields an item for each page, and follows its links."""

    name = "company"
    meta = None

    def parse(self, response):
        """Follow all links, as most spiders do."""
        yield {"url": response.url, "title": response.css("title::text").get()}
        yield from response.follow_all(css="a", callback=self.parse, meta=self.meta)


def write_site(folder: Path) -> None:
    """Write the pages, each with links to others of them."""
    chance = random.Random(24)
    for number in range(PAGES):
        linked = [(number + 1) % PAGES, *(chance.randrange(PAGES) for _ in range(LINKS - 1))]
        anchors = " ".join(f'<a href="{page or "index"}.html">page</a>' for page in linked)
        text = f"<html><title>{number}</title><body>{anchors}</body></html>"
        (folder / f"{number or 'index'}.html").write_text(text)


def main(options: dict) -> None:
    from tests.job.harness import preload

    settings = {**SETTINGS, **WITH[options["company"]]()}
    if options["ours"]:
        settings["ADDONS"] = {**settings.get("ADDONS", {}), "scrapy_bloom.Addon": 300}
    if options["job"]:
        settings["JOBDIR"] = options["job"]
    preload()
    before = resource.getrusage(resource.RUSAGE_SELF)
    process = AsyncCrawlerProcess(settings)
    crawler = process.create_crawler(CompanySpider)
    # fingerprints of scrapy-poet depend on this key, so that no URL is enough
    meta = {"page_params": {"shop": 1}} if options["company"] == "page-params" else None
    process.crawl(crawler, start_urls=[options["site"]], meta=meta)
    process.start()
    after = resource.getrusage(resource.RUSAGE_SELF)
    stats = crawler.stats.get_stats()
    answer = {
        "seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "pages": stats["response_received_count"],
        "items": stats["item_scraped_count"],
        "filtered": stats["dupefilter/filtered"],
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
