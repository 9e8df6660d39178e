"""What a pending request weighs in a job:

    python benchmarks/bench_weight.py [--items 100000]

Bytes are those of `requests.sqlite`, into which a real DurableScheduler has pushed the requests.
"""

import tempfile
from pathlib import Path

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached
from sidebyside import parser_of, table
from streams import CORPORA

from tests import fakes
from tests.crawl.engine import Job

AT_ONCE = 2_000


def requests_of(corpus: str, spider, slots: int, numbers: range) -> list[Request]:
    """Return requests, as a callback's output is after Scrapy's middlewares."""
    found = []
    for number in numbers:
        url, referer = CORPORA[corpus](number, number % slots)
        headers = {"Referer": referer} if referer else {}
        callback = spider.parse if corpus == "shop" else None
        found.append(Request(url, callback, meta={"depth": 3}, headers=headers))
    return found


def weigh(corpus: str, items: int, slots: int) -> float:
    """Return the bytes of one of so many pending requests."""
    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder), BLOOM_CAPACITY=items).open()
        first = pending = 0
        while pending < items:
            numbers = range(first, first + min(AT_ONCE, items - pending))
            requests = requests_of(corpus, job.spider, slots, numbers)
            pending += sum(map(job.scheduler.enqueue_request, requests))
            job.commit()
            first = numbers.stop
        job.close("shutdown")
        return Path(folder, "requests.sqlite").stat().st_size / items


def main() -> None:
    items = parser_of(__doc__, items=(1_000_000, "pending requests")).parse_args().items
    # the slots of Scrapy's downloader
    fakes.Downloader.get_slot_key = lambda self, request: urlparse_cached(request).hostname
    rows = []
    for count, slots in ((items, 20), (items, 1000), (min(100_000, items // 10), 1000)):
        each = [f"{weigh(corpus, count, slots):.1f}" for corpus in CORPORA]
        rows.append([f"{count:,} pending, {slots:,} slots", *each])
    table(["bytes a request", *CORPORA], rows)


if __name__ == "__main__":
    main()
