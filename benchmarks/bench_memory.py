"""Memory for each item, time to open and close a job, and bytes on the disk, against
RFPDupeFilter with JOBDIR: of the filter, without recent URLs. Each is made, closed, opened again
and closed in processes of their own.

    python benchmarks/bench_memory.py [--items 1e6 1e7]
"""

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from scrapy import Request
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.test import get_crawler
from sidebyside import forked, parser_of, resident, table

from scrapy_bloom import BloomDupeFilter
from tests.fakes import Engine

KINDS = {
    "RFPDupeFilter": {},
    "ours, grown from 1 M": {"BLOOM_CAPACITY": 1_000_000},
    "ours, capacity set": {},
    "ours, exact, capacity set": {"BLOOM_EXACT": True},
}


class RandomFingerprinter:
    """Every request is a new one."""

    def fingerprint(self, request: object) -> bytes:
        """Return 20 random bytes, or the same for the probes of the fingerprinter's identity."""
        return bytes(20) if isinstance(request, Request) else os.urandom(20)


def run(kind: str, capacity: int, items: int, job: str) -> dict[str, float]:
    """Open the job, add `items` requests, close; return what it took."""
    settings = {
        "JOBDIR": job,
        "REQUEST_FINGERPRINTER_CLASS": RandomFingerprinter,
        "BLOOM_URL_CACHE": 0,  # recent URLs take the same for any number of requests
        "BLOOM_CAPACITY": capacity,
        **KINDS[kind],
    }
    crawler = get_crawler(settings_dict=settings)
    crawler.spider, crawler.engine = None, Engine()
    before, times = resident(), [time.perf_counter()]
    made = RFPDupeFilter if kind == "RFPDupeFilter" else BloomDupeFilter
    dupefilter = made.from_crawler(crawler)
    dupefilter.open()
    times.append(time.perf_counter())
    seen = dupefilter.request_seen
    for _ in range(items):
        seen(object())
    took = resident() - before
    times.append(time.perf_counter())
    dupefilter.close("finished")
    times.append(time.perf_counter())
    files = [*Path(job).rglob("*.bloom"), *Path(job).rglob("requests.seen")]
    size = sum(file.stat().st_blocks * 512 for file in files)
    opened, closed = times[1] - times[0], times[3] - times[2]
    return {"memory": took, "size": size, "open": opened, "close": closed}


def measured(*arguments: Any) -> Any:
    """Return what `run` does in a process of its own."""
    found, _ = forked("a job", lambda answer: answer(run(*arguments)))
    return found


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--items", type=float, nargs="+", default=[1e6])
    rows = []
    for items in map(int, parser.parse_args().items):
        base = 0.0
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as job:
                first, again = (measured(kind, items, count, job) for count in (items, 0))
            each = first["memory"] / items
            base = base or each
            row = [f"{items:,} items: {kind}", f"{base / each:.1f}", f"{each:.1f}"]
            times = (first["close"], again["open"], again["close"])
            size = f"{first['size'] / items:.1f}"
            rows.append([*row, size, *(f"{seconds * 1000:.0f}" for seconds in times)])
    head = ["", "memory, ratio", "B/item", "file B/item"]
    table([*head, "close/ms", "open again/ms", "close again/ms"], rows)


if __name__ == "__main__":
    main()
