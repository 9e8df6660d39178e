"""What delayed requests cost in a job, and how late they are:

    python benchmarks/bench_later.py [--items 100000]

Bytes are those of `requests.sqlite`, into which a real DurableScheduler has pushed the requests.
Lateness is taken in a real crawl, until a request comes to the downloader, where each is due at a
moment of its own.
"""

import random
import tempfile
import time
from pathlib import Path

from crawls import OURS, crawl
from scrapy import Request, Spider
from scrapy.signals import request_reached_downloader
from sidebyside import parser_of, table
from streams import shop

from tests.crawl.engine import Job

ALONE = 200
"""Delayed requests that are due one by one, in ten seconds."""


def weigh(items):
    """Return the bytes of a delayed request."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder)).open()
        file = Path(folder, "requests.sqlite")
        empty = file.stat().st_size
        for number in range(items):
            url, meta = shop(number, number % 1000)[0], {"bloom_not_before": 3600 + number}
            job.scheduler.enqueue_request(Request(url, dont_filter=True, meta=meta))
            if number % 200 == 0:
                job.commit()
        job.close("shutdown")
        return (file.stat().st_size - empty) / items


class Later(Spider):
    """Pushes delayed requests, and notes how late each comes to the downloader."""

    name = "later"

    async def start(self):
        self.late = []
        self.crawler.signals.connect(self.note, request_reached_downloader)
        begin, chance = time.time() + 2, random.Random(1)
        for number in range(self.items):
            due = begin + chance.uniform(0, self.items / 20)
            meta = {"bloom_not_before": due, "due": due}
            yield Request(f"data:,{number}", meta=meta, dont_filter=True)

    def note(self, request):
        self.late.append(time.time() - request.meta["due"])

    def parse(self, response):
        if len(self.late) == self.items:
            self.answer({"late": sorted(self.late)})


def main():
    items = parser_of(__doc__, items=100_000).parse_args().items
    late = crawl(Later, OURS, items=ALONE)["late"]
    rows = [
        ("a row of the file", f"{weigh(items):.0f} B"),
        (f"{ALONE} due one by one, early", sum(each < 0 for each in late)),
    ]
    for name, share in (("half", 0.5), ("99 %", 0.99), ("all", 1)):
        rows.append((f"{name} late by at most", f"{late[int(share * (ALONE - 1))] * 1e3:.0f} ms"))
    table(("", ""), rows)


if __name__ == "__main__":
    main()
