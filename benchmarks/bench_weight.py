"""What a pending request weighs, and what a push and a pop cost:

    python benchmarks/bench_weight.py [--items 100000] [--only redis|sqlite]

Bytes are those of MEMORY USAGE over all keys but the filter's, and those of `requests.sqlite`. A
real worker's store and a real DurableScheduler have pushed the requests. The server is a Redis that
this starts: 7 with jemalloc for figures that compare.
"""

import gc
import logging
import re
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

from scrapy import Request
from scrapy.utils.httpobj import urlparse_cached
from sidebyside import parser_of, redis_server, table
from streams import CORPORA

from tests import fakes
from tests.crawl.engine import Job
from tests.redis.server import described
from tests.redis.workers import StoreWorker

CHUNK = 2_000
"""Requests that are pushed or popped in one turn."""
TURNS = 15
_OF_FILTER = re.compile(rb"\{[^}]*\}(:\d+){0,2}")


class InRedis:
    """A crawl in Redis; `push` returns how many requests were new."""

    def __init__(self, server, _: Path, items: int) -> None:
        server.command("FLUSHALL")
        self._client = server.client()
        self._client.connection_pool.connection_kwargs["socket_timeout"] = 600
        options = {"BLOOM_CAPACITY": items, "BLOOM_REDIS_TIMEOUT": 60}
        self._join = partial(StoreWorker, server.url, "weight", **options)
        self._workers = [self._join()]
        self._workers[0].store._leaving = True  # it claims nothing
        self.spider = self._workers[0].codec._codec._spider

    def push(self, requests: list) -> int:
        worker, new = self._workers[0], 0
        for number, request in enumerate(requests):
            if not worker.dupefilter.request_seen(request):
                worker.store.push(request, ())
                new += 1
            if number % 50 == 49:
                worker.exchange()
        while worker.store.unsent:
            worker.exchange()
        return new

    def pop(self, requests: list) -> None:
        if not self._workers[1:]:
            self._workers.append(self._join(capacity=200))
        for _ in requests:
            self._workers[1].store.done(self._workers[1].next())

    def server_seconds(self) -> float:
        used = self._client.info("cpu")
        return used["used_cpu_user"] + used["used_cpu_sys"]

    def close(self) -> int:
        """Return MEMORY USAGE of all keys but those of the filter."""
        pipeline = self._client.pipeline(transaction=False)
        for name in self._client.scan_iter(count=1000):
            if not _OF_FILTER.fullmatch(name):
                pipeline.memory_usage(name, samples=0)
        total = sum(pipeline.execute())
        for worker in self._workers:
            worker.close()
        self._client.close()
        return total


class InSqlite:
    """The same in a job of DurableScheduler."""

    def __init__(self, folder: Path, items: int) -> None:
        self._file = folder / "requests.sqlite"
        self._job = Job(folder, BLOOM_CAPACITY=items).open()
        self.spider = self._job.spider

    def push(self, requests: list) -> int:
        return self._each(requests, self._job.scheduler.enqueue_request)

    def pop(self, requests: list) -> None:
        self._each(requests, lambda _: self._job.done(self._job.pop()))

    def _each(self, requests: list, work) -> int:
        each_commit, new = self._job.scheduler.commit_operations, 0
        for number, request in enumerate(requests, 1):
            new += bool(work(request))
            if number % each_commit == 0:
                self._job.commit()
        self._job.commit()
        return new

    def server_seconds(self) -> float:
        return 0.0

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
        slots = {"20 slots": 20, "one a slot": items, "two a slot": items // 2}.get(row, 1000)
        cells.append([f"{items:,} pending, {row}"])
        for corpus in CORPORA:
            with tempfile.TemporaryDirectory() as folder:
                crawl, first, pending = open_crawl(Path(folder), items), 0, 0
                while pending < items:
                    count = min(CHUNK, items - pending)
                    pending += crawl.push(requests_of(corpus, crawl.spider, slots, first, count))
                    first += count
                cells[-1].append(f"{crawl.close() / items:.1f}")
    table([f"bytes a request in {title}", *CORPORA], cells)


def cost(medium: str, open_crawl, chunk: int) -> None:
    """Print the CPU time of a push and a pop in 20 slots, of this process and of the server."""
    rows = {}
    for corpus in CORPORA:
        with tempfile.TemporaryDirectory() as folder:
            crawl = open_crawl(Path(folder), TURNS * chunk)
            for method, turns in (("push", TURNS), ("pop", TURNS - 1)):  # too few may be left
                times = []
                for turn in range(turns):
                    requests = requests_of(corpus, crawl.spider, 20, turn * chunk, chunk)
                    gc.collect()
                    gc.disable()
                    server, began = crawl.server_seconds(), time.process_time()
                    getattr(crawl, method)(requests)
                    times.append((time.process_time() - began, crawl.server_seconds() - server))
                    gc.enable()
                for of, taken in zip(("process", "server"), zip(*times, strict=True), strict=True):
                    row = rows.setdefault(f"{method}, of the {of}", [])
                    row.append(f"{statistics.median(taken) / chunk * 1e6:.1f}")
            crawl.close()
    table([f"µs of CPU in {medium}", *CORPORA], [[name, *row] for name, row in rows.items()])


def main() -> None:
    parser = parser_of(__doc__, items=(1_000_000, "pending requests"))
    parser.add_argument("--only", choices=("redis", "sqlite"), help="one of the two")
    options = parser.parse_args()
    logging.disable()
    # the slots of Scrapy's downloader
    fakes.Downloader.get_slot_key = lambda self, request: urlparse_cached(request).hostname
    few, chunk = min(100_000, options.items // 10), min(CHUNK, options.items // 10)
    names = ("20 slots", "1,000 slots", "one a slot", "two a slot")
    rows = [*((name, options.items) for name in names), ("1,000 slots", few)]
    if options.only != "sqlite":
        print(described())
        with redis_server() as server:
            cost("redis", partial(InRedis, server), chunk)
            weigh("redis", partial(InRedis, server), rows)
    if options.only != "redis":
        cost("sqlite", InSqlite, chunk)
        weigh("sqlite", InSqlite, [*rows[:2], rows[-1]])


if __name__ == "__main__":
    main()
