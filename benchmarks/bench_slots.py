"""CPU time a request in crawls of few and of many hosts, with this package's queue and with
Scrapy's own disk queues by turns.

    python benchmarks/bench_slots.py [--pairs N] [--pages N] [slots…]

Each crawl first fills its slots, with as many requests in all as the others; then its pages are
counted, each of which yields one request more. There is no network: a download handler answers
after a moment.
"""

import asyncio
import random
import time

from crawls import IN_PROCESS, OURS, crawl, open_files
from scrapy import Request, Spider
from sidebyside import in_turns, medians, parser_of, resident, spread, table

WARM_UP = 100
"""Pages before those that are counted."""
NOT_FILES = 200
"""Open files of a crawl beside those of the queues: Scrapy's disk queues have one a slot."""
STOCK = {**IN_PROCESS, "CONCURRENT_REQUESTS_PER_DOMAIN": 8}
SIDES = {"stock": STOCK, "ours": {**STOCK, **OURS}}


class BroadSpider(Spider):
    """Fills its slots with the pending requests, then counts its pages."""

    name = "broad"

    async def start(self):
        self.filled = asyncio.Event()
        self._chance = random.Random(self.slots)
        self._seen = 0
        yield Request("http://first.example/", flags=["first"], callback=self.fill)

    def fill(self, response):
        for number in range(self.pending):
            yield self._request(number % self.slots, number)
        self._resident = resident()
        self.filled.set()

    def parse(self, response):
        self._seen += 1
        if self._seen == WARM_UP:
            self._before = time.process_time()
        if self._seen == WARM_UP + self.pages:
            each = (time.process_time() - self._before) / self.pages
            self.answer({"seconds": each, "resident": self._resident})
        yield self._request(self._chance.randrange(self.slots), -self._seen)

    def _request(self, slot, number):
        return Request(
            f"http://host-{slot * 7919 % self.slots:06}.example/a/page-{number}.html",
            headers={"Referer": "http://first.example/"},
        )


def main() -> None:
    parser = parser_of(__doc__, pairs=1, pages=(300, "to count in each crawl"))
    parser.add_argument("slots", nargs="*", type=int, default=[20, 4_000, 20_000])
    arguments = parser.parse_args()
    most = open_files() - NOT_FILES
    all_slots = [min(slots, most) for slots in arguments.slots]
    pending = max(all_slots) * 3 // 2
    options = {"pending": pending, "pages": arguments.pages}
    rows, first = [], None
    for slots in all_slots:
        runs = in_turns(
            SIDES,
            arguments.pairs,
            lambda whose, slots=slots: crawl(BroadSpider, SIDES[whose], slots=slots, **options),
        )
        stock, ours = ([run["seconds"] * 1e3 for run in runs[whose]] for whose in SIDES)
        first = first or ours
        nbytes = [[run["resident"] / 1e6 for run in runs[whose]] for whose in SIDES]
        ratios = spread(ours, stock)[0], spread(ours, first)[0]
        row = f"{slots:,} slots", *medians(".2f", stock, ours), *ratios, *medians(".0f", *nbytes)
        rows.append(row)
    counts = f"{pending:,} requests pending, {arguments.pages} pages, {arguments.pairs} pairs"
    print(f"Milliseconds of CPU time a page, {counts}; MB of memory")
    relative = f"of ours with {all_slots[0]:,}"
    table(["", "stock", "ours", "of stock", relative, "stock MB", "ours MB"], rows)


if __name__ == "__main__":
    main()
