"""Memory for each item, time to open and close a job, and bytes on the disk, against
RFPDupeFilter with JOBDIR: of the filter, without recent URLs. Each is made, closed, opened again
and closed in processes of their own.

    python tests/benchmarks/bench_memory.py [--items 1e6 1e7]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from scrapy import Request
from scrapy.dupefilters import RFPDupeFilter
from scrapy.utils.test import get_crawler
from sidebyside import resident, table

from scrapy_bloom import BloomDupeFilter
from tests.fakes import Engine

KINDS = {
    "RFPDupeFilter": (RFPDupeFilter, None),
    "ours, grown from 1 M": (BloomDupeFilter, 1_000_000),
    "ours, capacity set": (BloomDupeFilter, 0),
    "ours, exact, capacity set": (BloomDupeFilter, 0),
}


class RandomFingerprinter:
    """Every request is a new one."""

    def fingerprint(self, request: object) -> bytes:
        """Return 20 random bytes, or the same for the probes of the fingerprinter's identity."""
        return bytes(20) if isinstance(request, Request) else os.urandom(20)


def written() -> int:
    """Bytes that this process has handed to the disk."""
    fields = Path("/proc/self/io").read_text().split()
    return int(fields[fields.index("write_bytes:") + 1])


def run(kind: str, items: int, job: str) -> None:
    """Open the job, add `items` requests, close; print what it took as JSON."""
    made, capacity = KINDS[kind]
    settings = {"JOBDIR": job, "REQUEST_FINGERPRINTER_CLASS": RandomFingerprinter}
    settings["BLOOM_EXACT"] = "exact" in kind
    settings["BLOOM_URL_CACHE"] = 0  # they take the same for any number of requests
    if capacity is not None:
        settings["BLOOM_CAPACITY"] = capacity or items or int(os.environ["BENCH_ITEMS"])
    crawler = get_crawler(settings_dict=settings)
    crawler.spider, crawler.engine = None, Engine()
    before, io_before = resident(), written()
    started = time.perf_counter()
    dupefilter = made.from_crawler(crawler)
    dupefilter.open()
    opened = time.perf_counter()
    seen = dupefilter.request_seen
    for _ in range(items):
        seen(object())
    took = resident() - before
    adding = time.perf_counter()
    dupefilter.close("finished")
    closed = time.perf_counter()
    files = [*Path(job).rglob("*.bloom"), *Path(job).rglob("requests.seen")]
    size = sum(file.stat().st_blocks * 512 for file in files)
    answer = {
        "memory": took, "open": opened - started, "add": adding - opened,
        "close": closed - adding, "size": size, "written": written() - io_before,
    }  # fmt: skip
    print(json.dumps(answer))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=float, nargs="+", default=[1e6])
    parser.add_argument("--run", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        run(arguments.run[0], int(arguments.run[1]), arguments.run[2])
        return
    rows = []
    for items in map(int, arguments.items):
        base = 0.0
        for kind in KINDS:
            with tempfile.TemporaryDirectory() as job:
                first, again = (measured(kind, items, count, job) for count in (items, 0))
            each = first["memory"] / items
            base = base or each
            rows.append(
                [f"{items:,} items: {kind}", f"{base / each:.1f}", f"{each:.1f}"]
                + [f"{first[what] / items:.1f}" for what in ("size", "written")]
                + [f"{seconds * 1000:.0f}" for seconds in (first["close"], again["open"])]
                + [f"{again['close'] * 1000:.0f}"]
            )
    head = ["", "memory, ratio", "B/item", "file B/item", "written B/item"]
    table([*head, "close/ms", "open again/ms", "close again/ms"], rows)


def measured(kind: str, items: int, count: int, job: str) -> dict[str, float]:
    """What a process of its own says."""
    command = [sys.executable, __file__, "--run", kind, str(count), job]
    environment = {**os.environ, "BENCH_ITEMS": str(items)}
    output = subprocess.run(command, env=environment, check=True, capture_output=True).stdout
    return dict(json.loads(output.splitlines()[-1]))


if __name__ == "__main__":
    main()
