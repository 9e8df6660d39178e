"""What a second crawl costs that skips what the first has done: CPU time of the process. With
--store: what a store takes.

    python benchmarks/bench_delta.py [--lists N] [--new N] [--store [--pages N]]
"""

import json
import os
import tempfile
import time
from functools import partial
from pathlib import Path

from crawls import OURS, crawl
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.utils.test import get_crawler
from sidebyside import parser_of

from scrapy_bloom.amounts import DAY
from scrapy_bloom.delta.digests import BYTES, Digests, digest_of
from scrapy_bloom.delta.file_store import FileDeltaStore, Row
from scrapy_bloom.delta.settings import Lifetime
from tests.web_server import ServedInThread

DETAILS = 20
FACTS = {
    "table": None,
    "with digest": os.urandom(BYTES),
    "with version": os.urandom(8),
    "with validators": os.urandom(8) + b'"5e1-642d1f0a7c3c0"\nTue, 27 Oct 2026 10:00:00 GMT',
}
"""What a page has beside its mark, by kind."""
TEXT = "<p>" + "The quick brown fox jumps over the lazy dog. " * 100


class Lists(Spider):
    """Follows lists, and yields an item for each detail."""

    name = "lists"

    async def start(self):
        yield Request(self.site, self.parse_start)

    def parse_start(self, response):
        yield from response.follow_all(css="a", callback=self.parse_list)

    def parse_list(self, response):
        yield from response.follow_all(css="a", callback=self.parse_detail)

    def parse_detail(self, response):
        yield {"url": response.url, "title": response.css("h1::text").get()}


class Site(ServedInThread):
    """Lists, of which each day brings some details more."""

    def __init__(self, lists):
        self.lists = lists
        self.details = DETAILS
        self.asked = 0

    async def _answer(self, method, path, _):
        self.asked += 1
        parts = path.strip("/").split("/")
        links = []
        if parts == [""]:
            links = [f"/{number}" for number in range(self.lists)]
        elif len(parts) == 1:
            links = [f"{path}/{number}" for number in range(self.details)]
        text = "".join(f'<li><a href="{link}">{link}</a>' for link in links) or TEXT
        return 200, {"Content-Type": "text/html"}, f"<h1>{path}</h1>{text}".encode()


def crawls(lists: int, new: int) -> None:
    """Print what two crawls take, in jobs of their own with one delta store."""
    print(f"{lists} lists of {DETAILS} details; {new} of each new for the second")
    taken = []
    with tempfile.TemporaryDirectory() as folder, Site(lists) as site:
        for name in ("first", "second"):
            site.asked = 0
            settings = {
                **OURS,
                "BLOOM_DELTA": "item",
                "BLOOM_DELTA_DIR": f"{folder}/store",
                "FEEDS": {f"{folder}/{name}.jl": {"format": "jsonlines"}},
            }
            taken.append(crawl(Lists, settings, site=f"{site.url}/")["seconds"])
            print(f"  {name}: {site.asked:,} pages, {taken[-1]:.2f} s of CPU time")
            site.details += new
    print(f"  the second takes {taken[1] / taken[0]:.2f} of the first")


def store(pages: int) -> None:
    """Print what a page takes: bytes, CPU time of a mark, of a look and of a digest."""
    keys = [os.urandom(20) for _ in range(pages)]
    for kind, value in FACTS.items():
        fact = kind.removeprefix("with ")
        facts = {fact: value} if value else {}
        with tempfile.TemporaryDirectory() as place:
            began = time.time()
            table = FileDeltaStore(Path(place), Lifetime(30 * DAY))

            def mark(first, table=table, began=began, facts=facts):
                table.add(Row(key, began, **facts) for key in keys[first : first + 200])

            # as many as a crawl adds at a time
            marked = microseconds(mark, range(0, pages, 200)) / 200
            table.open()
            look = partial(table.fact, name=fact) if facts else table.known_until
            looked = microseconds(look, keys)
            nbytes = sum(path.stat().st_size for path in Path(place).rglob("*") if path.is_file())
            table.close()
        each = f"{nbytes / pages:.1f} bytes, {marked:.1f} µs a mark, {looked:.1f} µs a look"
        print(f"  {kind}, a page: {each}")
    item = {"url": "https://shop.example/p/1", "title": TEXT[:60], "price": 9.5, "text": TEXT[:600]}
    digests = Digests(get_crawler(), None, None, ["at"])
    page = Response("https://shop.example/p/1")
    made = microseconds(lambda _: digest_of(digests.add(None, item, page)), keys)
    alone = microseconds(lambda _: json.dumps(item, sort_keys=True), keys)
    print(f"  digest of an item of 0.8 kB: {made:.1f} µs, its JSON alone: {alone:.1f}")


def microseconds(work, things) -> float:
    """Return the CPU time of one of `things`."""
    cpu = time.process_time()
    for thing in things:
        work(thing)
    return (time.process_time() - cpu) / len(things) * 1e6


def main() -> None:
    parser = parser_of(__doc__, lists=200, new=(1, "new details of each"), pages=200_000)
    parser.add_argument("--store", action="store_true", help="the stores by themselves")
    options = parser.parse_args()
    if options.store:
        store(options.pages)
    else:
        crawls(options.lists, options.new)


if __name__ == "__main__":
    main()
