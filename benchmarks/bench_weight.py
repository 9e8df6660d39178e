"""What a pending request weighs, and what a push and a pop cost:

    python benchmarks/bench_weight.py [--items 100000] [--only redis|sqlite]

Bytes are those of MEMORY USAGE over all keys but the filter's, and those of `requests.sqlite`. A
real worker's store and a real DurableScheduler have pushed the requests. The server is a Redis that
this starts: 7 with jemalloc for figures that compare.
"""

import gc
import logging
import random
import re
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached
from sidebyside import parser_of, redis_server, table
from streams import SAMPLES, read

from tests import fakes
from tests.job.engine import Job
from tests.redis_backend.server import described
from tests.redis_backend.workers import StoreWorker

ROWS = {"20 slots": 20, "1,000 slots": 1000, "one a slot": None, "two a slot": None}
CHUNK = 2_000
"""Requests that are pushed or popped in one turn."""
TURNS = 15
FEW = 100_000
"""Pending requests of the last row, in 1,000 slots."""
FEW_SLOTS = 20
"""So many that their number costs nothing."""
_OF_FILTER = re.compile(rb"\{[^}]*\}(:\d+){0,2}")
REAL = [
    urlsplit(url).path
    for url in read(SAMPLES / "urls_kasztp_20000.txt.gz")
    if url.isascii() and '"' not in url and " " not in url
]
"""Paths of a real list, and words of them, the frequent ones more often."""
WORDS = re.findall("[a-z]{3,12}", " ".join(REAL))[::5]
_CHANCE = random.Random(20)
FOLDERS = ["/".join(_CHANCE.choices(WORDS[:400], k=1 + n % 4)) for n in range(150)]


def shop(number: int, slot: int) -> tuple[str, str | None]:
    """Return the URL and the referer of an item; the shops are all alike."""
    folder = f"http://shop-{slot:05}.example.com/catalogue/part-{number % 30:02}/"
    return f"{folder}item-{number}.html", folder


def one_site(number: int, slot: int) -> tuple[str, str | None]:
    """The same of a page of one large site in folders of very different sizes; further slots are
    mirrors."""
    chance = random.Random(number)
    folder = FOLDERS[int(len(FOLDERS) * chance.random() ** 3)]
    kind = chance.choice(["struct", "trait", "fn", "page", "enum", "page"])
    site = f"https://docs{slot}.example.org/{folder}/"
    return f"{site}{kind}.{chance.choice(WORDS[:400])}{number}.html", f"{site}index.html"


def the_web(number: int, slot: int) -> tuple[str, str | None]:
    """The same of a page of many sites that have nothing in common; links between them have no
    referer."""
    chance = random.Random(slot)
    host = f"www.{chance.choice(WORDS)}{slot}.{chance.choice(['com', 'org', 'co.uk'])}"
    chance = random.Random(number)
    folder, slash, _ = chance.choice(REAL).rpartition("/")
    name = chance.choice(REAL).rpartition("/")[2]
    site = f"https://{host}"
    return f"{site}{folder}{slash}{name or number}", f"{site}/" if number % 2 else None


CORPORA = {"shop": shop, "one site": one_site, "the web": the_web}


class InRedis:
    """A crawl in Redis."""

    def __init__(self, server, _: Path, items: int, **options) -> None:
        server.command("FLUSHALL")
        self._url = server.url
        self._client = server.client()
        self._client.connection_pool.connection_kwargs["socket_timeout"] = 600
        self._options = {"BLOOM_CAPACITY": items, "BLOOM_REDIS_TIMEOUT": 60, **options}
        self._worker = self._join()
        self._worker.store._leaving = True  # it claims nothing
        self._popping = None
        self.spider = self._worker.codec._codec._spider

    def _join(self, **options):
        return StoreWorker(self._url, "weight", **self._options, **options)

    def push(self, requests: list) -> None:
        worker = self._worker
        for number, request in enumerate(requests):
            if not worker.dupefilter.request_seen(request):
                worker.store.push(request, ())
            if number % 50 == 49:
                worker.exchange()
        while worker.store.unsent:
            worker.exchange()

    def pop(self, requests: list) -> None:
        self._popping = worker = self._popping or self._join(capacity=200)
        for _ in requests:
            worker.store.done(worker.next())

    def clock(self) -> tuple[float, ...]:
        """Return the CPU seconds of this process, and of the server."""
        used = self._client.info("cpu")
        return time.process_time(), used["used_cpu_user"] + used["used_cpu_sys"]

    def close(self) -> int:
        """Return MEMORY USAGE of all keys but those of the filter."""
        keys = self._client.scan_iter(count=1000)
        total, names = 0, [name for name in keys if not _OF_FILTER.fullmatch(name)]
        for first in range(0, len(names), 1000):
            pipeline = self._client.pipeline(transaction=False)
            for name in names[first : first + 1000]:
                pipeline.memory_usage(name, samples=0)
            total += sum(pipeline.execute())
        for worker in filter(None, (self._worker, self._popping)):
            worker.close()
        self._client.close()
        return total


class InSqlite:
    """A job of DurableScheduler."""

    def __init__(self, folder: Path, items: int) -> None:
        self._file = folder / "requests.sqlite"
        self._job = Job(folder, BLOOM_CAPACITY=items).open()
        self.spider = self._job.spider

    def push(self, requests: list) -> None:
        self._each(requests, self._job.scheduler.enqueue_request)

    def pop(self, requests: list) -> None:
        self._each(requests, lambda _: self._job.done(self._job.pop()))

    def _each(self, requests: list, work) -> None:
        each_commit = self._job.scheduler.commit_operations
        for number, request in enumerate(requests, 1):
            work(request)
            if number % each_commit == 0:
                self._job.commit()
        self._job.commit()

    def clock(self) -> tuple[float, ...]:
        """Return the CPU seconds of this process."""
        return (time.process_time(),)

    def close(self) -> int:
        """Return the bytes of the file once its log is in it."""
        self._job.close("shutdown")
        return self._file.stat().st_size


def requests_of(corpus: str, spider, slots: int, first: int, count: int) -> list[Request]:
    """Return requests, as a callback's output is after Scrapy's middlewares."""
    found = []
    for number in range(first, first + count):
        url, referer = CORPORA[corpus](number, number % slots)
        headers = {"Referer": referer} if referer else {}
        callback = spider.parse if corpus == "shop" else None
        found.append(Request(url, callback, meta={"depth": 3}, headers=headers))
    return found


def weigh(title: str, open_crawl, rows: list[tuple[str, int]]) -> None:
    """Print the bytes of a pending request."""
    cells = []
    for row, items in rows:
        slots = ROWS[row] or items // (1 if row == "one a slot" else 2)
        cells.append([f"{items:,} pending, {row}"])
        for corpus in CORPORA:
            with tempfile.TemporaryDirectory() as folder:
                crawl = open_crawl(Path(folder), items)
                for first in range(0, items, CHUNK):
                    count = min(CHUNK, items - first)
                    crawl.push(requests_of(corpus, crawl.spider, slots, first, count))
                cells[-1].append(f"{crawl.close() / items:.1f}")
    table([f"bytes a request in {title}", *CORPORA], cells)


def cost(medium: str, open_crawl, chunk: int) -> None:
    """Print the CPU time of a push and a pop, of this process and of the server."""
    rows = {}
    for corpus in CORPORA:
        with tempfile.TemporaryDirectory() as folder:
            crawl = open_crawl(Path(folder), TURNS * chunk)
            for method, turns in (("push", TURNS), ("pop", TURNS - 1)):  # too few may be left
                times = []
                for turn in range(turns):
                    requests = requests_of(corpus, crawl.spider, FEW_SLOTS, turn * chunk, chunk)
                    gc.collect()
                    gc.disable()
                    began = crawl.clock()
                    getattr(crawl, method)(requests)
                    ended = crawl.clock()
                    gc.enable()
                    times.append([(b - a) / chunk for a, b in zip(began, ended, strict=True)])
                for of, each in zip(("process", "server"), zip(*times, strict=True), strict=False):
                    row = rows.setdefault(f"{method}, of the {of}", [])
                    row.append(f"{statistics.median(each) * 1e6:.1f}")
            crawl.close()
    head = [f"µs of CPU in {medium}, {FEW_SLOTS} slots", *CORPORA]
    table(head, [[name, *row] for name, row in rows.items()])


def main() -> None:
    parser = parser_of(__doc__, items=(1_000_000, "pending requests"))
    parser.add_argument("--only", choices=("redis", "sqlite"), help="one of the two")
    options = parser.parse_args()
    logging.disable()
    # the slots of Scrapy's downloader
    fakes.Downloader.get_slot_key = lambda self, request: urlparse_cached(request).hostname
    few, chunk = min(FEW, options.items // 10), min(CHUNK, options.items // 10)
    rows = [*((row, options.items) for row in ROWS), ("1,000 slots", few)]
    if options.only != "sqlite":
        print(described())
        with redis_server() as server:
            cost("redis", partial(InRedis, server), chunk)
            weigh("redis", partial(InRedis, server), rows)
            full = partial(InRedis, server, BLOOM_BUDGET={"*": 0})
            weigh("redis, over a budget", full, [("20 slots", few)])
    if options.only != "redis":
        cost("sqlite", InSqlite, chunk)
        weigh("sqlite", InSqlite, [*rows[:2], rows[-1]])


if __name__ == "__main__":
    main()
