"""CPU time a request in crawls of few and of many hosts, with this package's queue and with
Scrapy's own disk queues by turns.

    python tests/benchmarks/bench_slots.py [--pairs N] [--pages N] [--memory] [slots…]

Each crawl first fills its slots, with as many requests in all as the others; then its pages are
counted, each of which yields one request more. There is no network: a download handler answers
after a moment.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import resource
import statistics
import tempfile
import time
from functools import partial

from sidebyside import OURS, forked, in_turns, parser_of, resident, spread, table

# isort: split
from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from scrapy.http import HtmlResponse

from tests.job.harness import preload

WARM_UP = 100
"""Pages before those that are counted."""
SETTINGS = {
    "TELNETCONSOLE_ENABLED": False,
    "REMOTE_CONTROL_ENABLED": False,
    "LOG_LEVEL": "ERROR",
    "CONCURRENT_REQUESTS": 16,
    "CONCURRENT_REQUESTS_PER_DOMAIN": 8,
    "DOWNLOAD_DELAY": 0,
    "DOWNLOAD_HANDLERS": {"http": "__main__.Answers"},
}
NOT_FILES = 200
"""Open files of a crawl beside those of the queues: Scrapy's disk queues have one a slot."""


class Answers:
    """A download handler that answers all but the first request when the slots are filled."""

    lazy = False

    def __init__(self, crawler):
        self._spider = crawler.spider

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    async def download_request(self, request, spider=None):
        if "first" not in request.flags:
            await self._spider.filled.wait()
            await asyncio.sleep(0.001)
        return HtmlResponse(request.url, body=b"<html></html>", request=request)

    async def close(self):
        pass


class BroadSpider(Spider):
    """Fills its slots with the pending requests, then counts its pages."""

    name = "broad"

    async def start(self):
        self.filled = asyncio.Event()
        self.found = {}
        self._chance = random.Random(self.slots)
        self._seen = 0
        yield Request("http://first.example/", flags=["first"], callback=self.fill)

    def fill(self, response):
        for number in range(self.pending):
            yield self._request(number % self.slots, number)
        self.found["bytes"] = resident()
        self.filled.set()

    def parse(self, response):
        self._seen += 1
        if self._seen == WARM_UP:
            self._before = time.process_time()
        if self._seen == WARM_UP + self.pages:
            self.found["page"] = (time.process_time() - self._before) / self.pages
            self.answer(self.found)
        yield self._request(self._chance.randrange(self.slots), -self._seen)

    def _request(self, slot, number):
        return Request(
            f"http://host-{slot * 7919 % self.slots:06}.example/a/page-{number}.html",
            headers={"Referer": "http://first.example/"},
        )


def crawl(options: argparse.Namespace, pending: int, slots: int, whose: str) -> dict:
    """Crawl in a forked process; return its CPU seconds a page, and its bytes."""

    def work(answer):
        gc.unfreeze()  # a collection takes as long as in any crawl
        process = AsyncCrawlerProcess({**SETTINGS, **(OURS if whose == "ours" else {}), **job})
        spider = {"slots": slots, "pending": pending, "pages": options.pages, "answer": answer}
        process.crawl(BroadSpider, **spider)
        process.start()

    with tempfile.TemporaryDirectory() as name:
        job = {} if options.memory else {"JOBDIR": f"{name}/job"}
        return forked(f"the crawl of {slots} slots", work)[0]


def main() -> None:
    parser = parser_of(__doc__, pairs=1, pages=(300, "to count in each crawl"))
    parser.add_argument("slots", nargs="*", type=int, default=[20, 4_000, 20_000])
    parser.add_argument("--memory", action="store_true", help="without JOBDIR")
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    all_slots = [min(slots, most - NOT_FILES) for slots in arguments.slots]
    pending = max(all_slots) * 3 // 2
    preload()
    runs = {}
    for slots in all_slots:
        run = partial(crawl, arguments, pending, slots)
        for whose, found in in_turns(("stock", "ours"), arguments.pairs, run).items():
            runs[whose, slots] = found

    def ratio(one: tuple[str, int], other: tuple[str, int]) -> str:
        return spread(*([run["page"] for run in runs[each]] for each in (one, other)))[0]

    def row(slots: int) -> list[str]:
        each = [runs[whose, slots] for whose in ("stock", "ours")]
        return [
            f"{slots:,} slots",
            *(f"{statistics.median(run['page'] for run in found) * 1e3:.2f}" for found in each),
            ratio(("ours", slots), ("stock", slots)),
            ratio(("ours", slots), ("ours", all_slots[0])),
            *(f"{statistics.median(run['bytes'] for run in found) / 1e6:.0f}" for found in each),
        ]

    print(
        f"Milliseconds of CPU time a page, {pending:,} requests pending, {arguments.pages} pages,"
        f" {arguments.pairs} pairs; MB of memory"
    )
    head = [
        "",
        "stock",
        "ours",
        "of stock",
        f"of ours with {all_slots[0]:,}",
        "stock MB",
        "ours MB",
    ]
    table(head, [row(slots) for slots in all_slots])


if __name__ == "__main__":
    main()
