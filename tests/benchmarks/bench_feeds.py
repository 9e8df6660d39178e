"""What it costs that feeds hold each item once: CPU time of a crawl of the demo's site with
a feed, ours and Scrapy's by turns, both with DurableScheduler; and memory for 10,000 items of
1 kB from one page.

    python tests/benchmarks/bench_feeds.py [--pairs N]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from bench_crawl import OURS, SETTINGS, crawl, serve_demo
from scrapy import Request, Spider
from scrapy.crawler import AsyncCrawlerProcess
from sidebyside import table

from tests.job.harness import preload

FORMATS = ("jsonlines", "csv", "json")
QUIET = {"LOG_LEVEL": "ERROR"}
PAGES = 1_000
ITEMS, BYTES = 10_000, 1_000


def compare(pairs: int) -> None:
    """Print the ratios of crawls that followed each other."""
    rows = []
    with serve_demo() as site:
        for form in FORMATS:
            seconds: dict[bool, list[float]] = {True: [], False: []}
            for number in range(2 * pairs):
                durable = number % 4 in (0, 3)
                with tempfile.TemporaryDirectory() as name:
                    feed = {f"{name}/items": {"format": form}}
                    settings = {**OURS, **QUIET, "FEEDS": feed, "BLOOM_DURABLE_FEEDS": durable}
                    run = crawl(site, "follow_all", Path(name) / "job", settings, PAGES)
                seconds[durable].append(run.each)
            ratios = sorted(a / b for a, b in zip(seconds[True], seconds[False], strict=True))
            rows.append(
                [
                    form,
                    f"{statistics.median(ratios):.2f}",
                    f"{ratios[0]:.2f} to {ratios[-1]:.2f}",
                    f"{statistics.median(seconds[False]):.2f}",
                    f"{statistics.median(seconds[True]):.2f}",
                ]
            )
    print(f"the demo's site, one item a page: milliseconds of CPU time a page, {pairs} pairs")
    table(["", "ratio", "from, to", "Scrapy's feeds", "each item once"], rows)


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
    pid = os.fork()
    if not pid:
        with tempfile.TemporaryDirectory() as name:
            feed = {f"{name}/items": {"format": "jsonlines"}}
            settings = {**OURS, **QUIET, "FEEDS": feed, "BLOOM_DURABLE_FEEDS": durable}
            process = AsyncCrawlerProcess({**SETTINGS, **settings, "JOBDIR": f"{name}/job"})
            process.crawl(ManyItems, items=items)
            process.start()
        os._exit(0)
    _, status, used = os.wait4(pid, 0)
    assert not status
    return used.ru_maxrss / 1e3


def main() -> None:
    """Print a table for each."""
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
