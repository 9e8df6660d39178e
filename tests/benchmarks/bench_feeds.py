"""What it costs that feeds hold each item once: CPU time of a crawl of the demo's site with
a feed, ours and Scrapy's by turns, both with DurableScheduler; and memory for 10,000 items of
1 kB from one page.

    python tests/benchmarks/bench_feeds.py [--pairs N]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from functools import partial
from pathlib import Path

from bench_crawl import SETTINGS, crawl, serve_demo
from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from sidebyside import OURS, forked, in_turns, spread, table

from tests.job.harness import preload

FORMATS = ("jsonlines", "csv", "json")
PAGES = 1_000
ITEMS, BYTES = 10_000, 1_000


def compare(pairs: int) -> None:
    """Print the ratios of crawls that followed each other."""
    rows = []
    with serve_demo() as site:
        for form in FORMATS:
            runs = in_turns((True, False), pairs, partial(milliseconds, site, form))
            medians = (f"{statistics.median(runs[durable]):.2f}" for durable in (False, True))
            rows.append([form, *spread(runs[True], runs[False]), *medians])
    print(f"the demo's site, one item a page: milliseconds of CPU time a page, {pairs} pairs")
    table(["", "ratio", "from, to", "Scrapy's feeds", "each item once"], rows)


def milliseconds(site: str, form: str, durable: bool) -> float:
    """Crawl, and return the CPU time of a page."""
    with tempfile.TemporaryDirectory() as name:
        job = Path(name) / "job"
        return crawl(site, "follow_all", job, settings_of(name, form, durable), PAGES).each


def settings_of(name: str, form: str, durable: bool) -> dict:
    """Return the settings of a crawl with a feed in that folder."""
    feed = {f"{name}/items": {"format": form}}
    return {**OURS, "LOG_LEVEL": "ERROR", "FEEDS": feed, "BLOOM_DURABLE_FEEDS": durable}


class ManyItems(Spider):
    """Has them all on one page."""

    name = "many"

    async def start(self):
        yield Request("data:,")

    def parse(self, response):
        for number in range(int(self.items)):
            yield {"number": number, "text": "x" * BYTES}


def memory(durable: bool, items: int) -> float:
    """Return the most memory that a crawl took, in MB, in a process of its own."""

    def work(answer):
        with tempfile.TemporaryDirectory() as name:
            settings = {**settings_of(name, "jsonlines", durable), "JOBDIR": f"{name}/job"}
            process = AsyncCrawlerProcess({**SETTINGS, **settings})
            process.crawl(ManyItems, items=items)
            process.start()
        answer(None)

    return forked(f"the crawl of {items} items", work)[1].ru_maxrss / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    preload()
    compare(arguments.pairs)
    print(f"\nmemory in MB at most, {BYTES:,} bytes an item, all from one page")
    table(
        ["items", "Scrapy's feeds", "each item once"],
        [
            [f"{n:,}", *(f"{memory(durable, n):.1f}" for durable in (False, True))]
            for n in (1, ITEMS)
        ],
    )


if __name__ == "__main__":
    main()
