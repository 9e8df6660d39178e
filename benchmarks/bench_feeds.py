"""What it costs that feeds hold each item once: CPU time of a crawl of the demo's site with
a feed, ours and Scrapy's by turns, both with DurableScheduler; and memory for 10,000 items of
1 kB from one page.

    python benchmarks/bench_feeds.py [--pairs N]
"""

import tempfile

from crawls import OURS, crawl, crawl_links, serve_demo
from scrapy import Request, Spider
from sidebyside import in_turns, medians, parser_of, spread, table

FORMATS = ("jsonlines", "csv", "json")
PAGES = 1_000
ITEMS, BYTES = 10_000, 1_000


class ManyItems(Spider):
    """Has them all on one page."""

    name = "many"

    async def start(self):
        yield Request("data:,")

    def parse(self, response):
        for number in range(self.items):
            yield {"number": number, "text": "x" * BYTES}


def feed(folder: str, form: str, durable: bool) -> dict:
    """Return the settings of a crawl with a feed in that folder."""
    return {**OURS, "FEEDS": {f"{folder}/items": {"format": form}}, "BLOOM_DURABLE_FEEDS": durable}


def milliseconds(site: str, form: str, durable: bool) -> float:
    """Crawl, and return the CPU time of a page."""
    with tempfile.TemporaryDirectory() as folder:
        return crawl_links(site, "follow_all", feed(folder, form, durable), PAGES)["each"]


def megabytes(items: int, durable: bool) -> str:
    """Return the most memory that a crawl of so many items took."""
    with tempfile.TemporaryDirectory() as folder:
        found = crawl(ManyItems, feed(folder, "jsonlines", durable), items=items)
    return f"{found['bytes'] / 1e6:.1f}"


def main() -> None:
    pairs = parser_of(__doc__, pairs=5).parse_args().pairs
    rows = []
    with serve_demo() as site:
        for form in FORMATS:
            runs = in_turns(
                (False, True), pairs, lambda durable, form=form: milliseconds(site, form, durable)
            )
            rows.append([form, *spread(runs[True], runs[False]), *medians(".2f", *runs.values())])
    print(f"the demo's site, one item a page: milliseconds of CPU time a page, {pairs} pairs")
    sides = ("Scrapy's feeds", "each item once")
    table(["", "ratio", "from, to", *sides], rows)
    print(f"\nmemory in MB at most, {BYTES:,} bytes an item, all from one page")
    many = [[f"{n:,}", *(megabytes(n, durable) for durable in (False, True))] for n in (1, ITEMS)]
    table(["items", *sides], many)


if __name__ == "__main__":
    main()
