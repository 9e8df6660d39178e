"""What a second crawl costs that skips what the first has done: CPU time of the process. With
--store: what the stores of a directory take, side by side. With --redis: what marks take of the
server.

python -m tests.benchmarks.bench_delta [--lists N] [--new N] [--store | --redis [--pages N]]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import textwrap
import time
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen

from scrapy.http import Response
from scrapy.utils.test import get_crawler

from scrapy_bloom.amounts import DAY
from scrapy_bloom.delta.digests import BYTES, Digests, digest_of
from scrapy_bloom.delta.file_store import FileDeltaStore, Row
from scrapy_bloom.delta.settings import Lifetime
from tests.benchmarks.sidebyside import redis_server, server_seconds
from tests.web_server import ServedInThread

DETAILS = 20
SPIDER = """
import scrapy


class Lists(scrapy.Spider):
    name = "lists"

    async def start(self):
        yield scrapy.Request(self.site, self.parse_start)

    def parse_start(self, response):
        yield from response.follow_all(css="a", callback=self.parse_list)

    def parse_list(self, response):
        yield from response.follow_all(css="a", callback=self.parse_detail)

    def parse_detail(self, response):
        yield {"url": response.url, "title": response.css("h1::text").get()}
"""
TEXT = "<p>" + "The quick brown fox jumps over the lazy dog. " * 100


class Site(ServedInThread):
    """Lists, of which each day brings some details more."""

    def __init__(self, lists: int) -> None:
        self.lists = lists
        self.details = DETAILS
        self.asked = 0

    async def _answer(self, method: str, path: str, _: str) -> tuple[int, dict[str, str], bytes]:
        self.asked += 1
        parts = path.strip("/").split("/")
        links: list[str] = []
        if parts == [""]:
            links = [f"/{number}" for number in range(self.lists)]
        elif len(parts) == 1:
            links = [f"{path}/{number}" for number in range(self.details)]
        text = "".join(f'<li><a href="{link}">{link}</a>' for link in links) or TEXT
        return 200, {"Content-Type": "text/html"}, f"<h1>{path}</h1>{text}".encode()


def crawl(folder: Path, number: int, url: str) -> float:
    """Crawl in a process of its own, in a new job; return the CPU seconds that it took."""
    settings = {
        "ADDONS": '{"scrapy_bloom.Addon": 300}',
        "JOBDIR": folder / f"job{number}",
        "BLOOM_DELTA": "item",
        "BLOOM_DELTA_DIR": folder / "memory",
        "LOG_LEVEL": "INFO",
        "TELNETCONSOLE_ENABLED": 0,
        "CONCURRENT_REQUESTS_PER_DOMAIN": 16,
        "DOWNLOAD_DELAY": 0,
    }
    pairs = [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]
    command = [sys.executable, "-m", "scrapy", "runspider", "lists.py", "-a", f"site={url}"]
    process = Popen(
        [*command, "-o", f"items{number}.jl", *pairs], cwd=folder, stdin=DEVNULL, stderr=PIPE
    )
    assert process.stderr is not None
    log = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    assert "'finish_reason': 'finished'" in log, log
    print("  ", *re.findall(r"Between crawls: (skipped [^;]*; marked [^.]*)\.", log))
    return usage.ru_utime + usage.ru_stime


def measure_stores(pages: int) -> None:
    """Print for each kind of store what a page takes: bytes, CPU time of a mark and of a look."""
    keys = [os.urandom(20) for _ in range(pages)]
    for kind in ("table", "table with digests"):
        with tempfile.TemporaryDirectory() as place:
            began = time.time()
            store = FileDeltaStore(Path(place), Lifetime(30 * DAY))
            digest = os.urandom(BYTES) if "digests" in kind else None
            cpu = time.process_time()
            for first in range(0, pages, 200):  # as many as a crawl adds at a time
                store.add(Row(key, began, digest) for key in keys[first : first + 200])
            marked = time.process_time() - cpu
            store.open()
            cpu = time.process_time()
            assert all(map(store.digest if digest else store.knows, keys))
            looked = time.process_time() - cpu
            nbytes = sum(path.stat().st_size for path in Path(place).rglob("*") if path.is_file())
            store.close()
        per_page = (nbytes / pages, marked / pages * 1e6, looked / pages * 1e6)
        print(
            "  {}: {:.1f} bytes a page, {:.1f} µs a mark, {:.1f} µs a look".format(kind, *per_page)
        )
    measure_digests(pages)


def measure_digests(pages: int) -> None:
    """Print what the digest of a page with one item takes, beside the JSON of that item."""
    item = {"url": "https://shop.example/p/1", "title": TEXT[:60], "price": 9.5, "text": TEXT[:600]}
    digests = Digests(get_crawler(), None, None, ["at"])  # type: ignore[arg-type]
    page = Response("https://shop.example/p/1")
    taken = []
    for work in (
        lambda: digest_of(digests.add(None, item, page)),
        lambda: json.dumps(item, sort_keys=True),
    ):
        cpu = time.process_time()
        for _ in range(pages):
            work()
        taken.append((time.process_time() - cpu) / pages * 1e6)
    print("  digest of an item of 0.8 kB: {:.1f} µs, its JSON alone: {:.1f}".format(*taken))


def measure_redis(pages: int) -> None:
    """Print what a mark takes of the server's CPU time."""
    from scrapy_bloom.delta.redis_store import RedisDeltaStore
    from tests.redis_backend.server import described

    print(described())
    with redis_server() as server, server.client() as client:
        store = RedisDeltaStore(server.url, "memory", Lifetime(period=30 * DAY), 5.0)
        before = server_seconds(client)
        store.add(Row(os.urandom(20), time.time()) for _ in range(pages))
        taken = (server_seconds(client) - before) / pages * 1e6
        store.close()
    print(f"  marked: {taken:.1f} µs of the server's CPU a page, 500 in a call")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bench_delta")
    parser.add_argument("--lists", type=int, default=200)
    parser.add_argument("--new", type=int, default=1, help="new details of each list")
    parser.add_argument("--store", action="store_true", help="the stores by themselves")
    parser.add_argument("--redis", action="store_true", help="marks in Redis")
    parser.add_argument("--pages", type=int, default=200_000, help="of each store")
    options = parser.parse_args()
    if options.redis:
        measure_redis(options.pages)
        return
    if options.store:
        measure_stores(options.pages)
        return
    print(f"{options.lists} lists of {DETAILS} details; {options.new} of each new for the second")
    with tempfile.TemporaryDirectory() as place, Site(options.lists) as site:
        folder = Path(place)
        (folder / "lists.py").write_text(textwrap.dedent(SPIDER))
        taken = []
        for number, name in enumerate(("first", "second")):
            site.asked = 0
            taken.append(crawl(folder, number, f"{site.url}/"))
            print(f"  {name}: {site.asked:,} pages, {taken[-1]:.2f} s of CPU time")
            site.details += options.new
    print(f"  the second takes {taken[1] / taken[0]:.2f} of the first")


if __name__ == "__main__":
    main()
