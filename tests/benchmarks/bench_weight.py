"""What a pending request weighs, and what a push and a pop cost:

    python tests/benchmarks/bench_weight.py [--items 100000] [--before ~/other/.venv/bin/python]

Bytes are those of MEMORY USAGE over all keys but the filter's, and those of `requests.sqlite`. A
real worker's store and a real DurableScheduler have pushed the requests. `--before` is the Python
of another checkout: its figures stand beside those of this one, taken in turns. The server is a
Redis that this starts: 7 with jemalloc for figures that compare.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
ROWS = ("20 slots", "1,000 slots", "one a slot", "two a slot")
CHUNK = 2_000
"""Requests that are pushed or popped in one turn."""
TURNS = 15
FEW = 100_000
"""Pending requests of the last row, in 1,000 slots."""
FEW_SLOTS = 20
"""So many that their number costs nothing."""
_OF_FILTER = re.compile(rb"\{[^}]*\}(:\d+){0,2}")


class Shop:
    """Items of shops that are all alike."""

    title = "shop"
    has_callback = True

    def __init__(self) -> None:
        self.host = "shop-{:05}.example.com".format

    def request(self, number: int, slot: int) -> tuple[str, str | None]:
        """Return the URL of the request and its referer."""
        folder = f"http://{self.host(slot)}/catalogue/part-{number % 30:02}/"
        return f"{folder}item-{number}.html", folder


class Site:
    """Pages of one large site in folders of very different sizes; further slots are mirrors."""

    title = "one site"
    has_callback = False

    def __init__(self) -> None:
        chance = random.Random(20)
        self._words = words()[:400]
        self._folders = ["/".join(chance.choices(self._words, k=1 + n % 4)) for n in range(150)]
        self.host = "docs{}.example.org".format

    def request(self, number: int, slot: int) -> tuple[str, str | None]:
        """Return the URL of the request and its referer, the index of its folder."""
        chance = random.Random(number)
        folder = self._folders[int(len(self._folders) * chance.random() ** 3)]
        kind = chance.choice(["struct", "trait", "fn", "page", "enum", "page"])
        name = f"{chance.choice(self._words)}{number}"
        site = f"https://{self.host(slot)}/{folder}/"
        return f"{site}{kind}.{name}.html", f"{site}index.html"


class Web:
    """Pages of many sites that have nothing in common; links between them have no referer."""

    title = "the web"
    has_callback = False

    def __init__(self) -> None:
        self._words = words()
        self._paths = [split.path.rpartition("/") for split in map(urlsplit, real_urls())]

    def host(self, slot: int) -> str:
        """Return the name of a site."""
        chance = random.Random(slot)
        return f"www.{chance.choice(self._words)}{slot}.{chance.choice(['com', 'org', 'co.uk'])}"

    def request(self, number: int, slot: int) -> tuple[str, str | None]:
        """Return the URL of the request, and its referer or None."""
        chance = random.Random(number)
        site = f"https://{self.host(slot)}"
        folder, slash, _ = chance.choice(self._paths)
        name = chance.choice(self._paths)[2]
        return f"{site}{folder}{slash}{name or number}", f"{site}/" if number % 2 else None


CORPORA = {corpus.title: corpus for corpus in (Shop, Site, Web)}


@lru_cache
def real_urls() -> list[str]:
    """Return the URLs of a real list."""
    from sidebyside import SAMPLES, read

    urls = read(SAMPLES / "urls_kasztp_20000.txt.gz")
    return [url for url in urls if url.isascii() and '"' not in url and " " not in url]


@lru_cache
def words() -> list[str]:
    """Return words of the paths in a real list, the frequent ones more often."""
    found = re.findall("[a-z]{3,12}", " ".join(urlsplit(url).path for url in real_urls()))
    return found[::5]


def slots_of(row: str, items: int) -> int:
    """Return the number of slots in a row."""
    return {"20 slots": FEW_SLOTS, "one a slot": items, "two a slot": items // 2}.get(row, 1000)


class Pushed:
    """A crawl for requests of a corpus; times are CPU seconds a request, ours and the server's."""

    def __init__(self, corpus: str, slots: int, items: int) -> None:
        self._corpus = CORPORA[corpus]()
        self._slots = slots
        self._items = items
        self._number = 0
        self._pending = 0
        self._folder = tempfile.TemporaryDirectory(prefix="weight-")
        self.folder = Path(self._folder.name)

    def requests(self, count: int) -> list:
        """Return the next requests, as a callback's output is after Scrapy's middlewares."""
        from scrapy import Request

        found = []
        for number in range(self._number, self._number + count):
            url, referer = self._corpus.request(number, number % self._slots)
            headers = {"Referer": referer} if referer else {}
            callback = self.spider.parse if self._corpus.has_callback else None
            found.append(Request(url, callback, meta={"depth": 3}, headers=headers))
        self._number += count
        return found

    def push(self, count: int = CHUNK) -> tuple[float, float]:
        """Push so many; return the times of one."""
        return self._timed(self._push, self.requests(count), count)

    def pop(self, count: int = CHUNK) -> tuple[float, float]:
        """Pop so many, and finish them; return the times of one."""
        return self._timed(self._pop, count, count)

    def fill(self) -> float:
        """Push all; return the bytes of one that is pending."""
        while self._pending < self._items:
            self._push(self.requests(min(CHUNK, self._items - self._pending)))
        return self.nbytes() / self._pending

    def _timed(self, call, argument, count: int) -> tuple[float, float]:
        gc.collect()
        gc.disable()
        server, began = self.server_seconds(), time.process_time()
        call(argument)
        took = time.process_time() - began, self.server_seconds() - server
        gc.enable()
        return took[0] / count, took[1] / count

    def server_seconds(self) -> float:
        """Return the CPU seconds of the server."""
        return 0.0

    def close(self) -> None:
        self._folder.cleanup()


class InRedis(Pushed):
    """A crawl in Redis."""

    def __init__(self, corpus: str, slots: int, items: int) -> None:
        super().__init__(corpus, slots, items)
        from tests.redis_backend.server import Server

        self._server = Server(self.folder)
        self._client = self._server.client()
        self._client.connection_pool.connection_kwargs["socket_timeout"] = 600
        self._worker = self._join()
        self._worker.store._leaving = True  # it claims nothing
        self.spider = self._worker.codec._codec._spider
        self._popping = None

    def _join(self, **options):
        from tests.redis_backend.workers import StoreWorker

        return StoreWorker(
            self._server.url,
            "weight",
            **{"BLOOM_CAPACITY": self._items, "BLOOM_REDIS_TIMEOUT": 60, **options},
        )

    def _push(self, requests: list) -> None:
        worker = self._worker
        for number, request in enumerate(requests):
            if not worker.dupefilter.request_seen(request):
                worker.store.push(request, ())
                self._pending += 1
            if number % 50 == 49:
                worker.exchange()
        while worker.store.unsent:
            worker.exchange()

    def _pop(self, count: int) -> None:
        self._popping = worker = self._popping or self._join(capacity=200)
        for _ in range(count):
            request = worker.next()
            assert request is not None
            worker.store.done(request)

    def nbytes(self) -> int:
        """Return MEMORY USAGE of all keys but those of the filter."""
        found = self._client.scan_iter(count=1000)
        total, names = 0, [name for name in found if not _OF_FILTER.fullmatch(name)]
        for first in range(0, len(names), 1000):
            pipeline = self._client.pipeline(transaction=False)
            for name in names[first : first + 1000]:
                pipeline.memory_usage(name, samples=0)
            total += sum(pipeline.execute())
        return total

    def server_seconds(self) -> float:
        found = self._client.info("cpu")
        return found["used_cpu_user"] + found["used_cpu_sys"]

    def close(self) -> None:
        for worker in filter(None, (self._worker, self._popping)):
            worker.close()
        self._client.close()
        self._server.stop()
        super().close()


class OverBudget(InRedis):
    """A crawl in Redis without room: all that is pushed is kept as capped."""

    def _join(self, **options):
        return super()._join(BLOOM_BUDGET={"*": 0}, **options)


class InSQLite(Pushed):
    """A job of DurableScheduler."""

    def __init__(self, corpus: str, slots: int, items: int) -> None:
        super().__init__(corpus, slots, items)
        from tests.job.engine import Job

        self._job = Job(self.folder / "job", BLOOM_CAPACITY=items).open()
        self.spider = self._job.spider

    def _push(self, requests: list) -> None:
        job = self._job
        each_commit = job.scheduler.commit_operations
        for number, request in enumerate(requests):
            self._pending += job.scheduler.enqueue_request(request)
            if number % each_commit == each_commit - 1:
                job.commit()
        job.commit()

    def _pop(self, count: int) -> None:
        job = self._job
        each_commit = job.scheduler.commit_operations
        for number in range(count):
            popped = job.pop()
            assert popped is not None
            job.done(popped)
            if number % each_commit == each_commit - 1:
                job.commit()
        job.commit()

    def nbytes(self) -> int:
        """Return the bytes of the file once its log is in it."""
        self._job.close("shutdown")
        return (self.folder / "job" / "requests.sqlite").stat().st_size

    def close(self) -> None:
        self._job.drop()
        super().close()


MEDIA = {"redis": InRedis, "sqlite": InSQLite}
CRAWLS = {**MEDIA, "redis, over a budget": OverBudget}


def answer() -> None:
    """Do what the lines of stdin ask for, in the checkout of the package that is installed."""
    from scrapy.utils.httpobj import urlparse_cached

    from tests import fakes

    # the slots of Scrapy's downloader
    fakes.Downloader.get_slot_key = lambda self, request: urlparse_cached(request).hostname
    logging.disable()
    crawl = None
    for line in sys.stdin:
        method, *arguments = json.loads(line)
        if method == "open":
            medium, *arguments = arguments
            found = crawl = CRAWLS[medium](*arguments)
            found = None
        else:
            found = getattr(crawl, method)(*arguments)
        print(json.dumps(found), flush=True)


class Checkout:
    """A process with the package of a checkout, which measures."""

    def __init__(self, name: str, python: str, root: Path) -> None:
        self.name = name
        self._process = subprocess.Popen(
            [python, "-W", "ignore", str(HERE / "bench_weight.py"), "--measure", str(root)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": ""},
        )

    def ask(self, method: str, *arguments):
        """Return the result of a method of the crawl."""
        assert self._process.stdin
        assert self._process.stdout
        print(json.dumps([method, *arguments]), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def end(self) -> None:
        self._process.communicate()


def root_of(python: str) -> Path:
    """Return the checkout whose package a Python has."""
    found = subprocess.run(
        [python, "-c", "import scrapy_bloom; print(scrapy_bloom.__file__)"],
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
        env={**os.environ, "PYTHONPATH": ""},  # which names this checkout
    )
    return Path(found.stdout.strip()).parent.parent


def weigh(checkouts: list[Checkout], medium: str, rows: list[tuple[str, int]]) -> None:
    """Print the bytes of a pending request."""
    from sidebyside import table

    head = [f"bytes a request in {medium}", "checkout", *CORPORA]
    cells = []
    for row, items in rows:
        for checkout in checkouts:
            found = []
            for corpus in CORPORA:
                checkout.ask("open", medium, corpus, slots_of(row, items), items)
                found.append(f"{checkout.ask('fill'):.1f}")
                checkout.ask("close")
            cells.append([f"{items:,} pending, {row}", checkout.name, *found])
    table(head, cells)


def cost(checkouts: list[Checkout], medium: str, chunk: int) -> None:
    """Print the times of a push and a pop, in turns."""
    from sidebyside import table

    times: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for corpus in CORPORA:
        for checkout in checkouts:
            checkout.ask("open", medium, corpus, FEW_SLOTS, TURNS * chunk)
        for method in ("push", "pop"):
            for turn in range(TURNS):
                for checkout in checkouts if turn % 2 else checkouts[::-1]:
                    key = method, checkout.name, corpus
                    # the last pops may find too few
                    if method == "push" or turn < TURNS - 1:
                        times.setdefault(key, []).append(checkout.ask(method, chunk))
        for checkout in checkouts:
            checkout.ask("close")
    rows = []
    for which, of in enumerate(("of the process", "of the server")):
        for method in ("push", "pop") if medium == "redis" or not which else ():
            for checkout in checkouts:
                found = [
                    statistics.median(each[which] for each in times[method, checkout.name, corpus])
                    for corpus in CORPORA
                ]
                figures = [f"{seconds * 1e6:.1f}" for seconds in found]
                rows.append([f"{method}, {of}", checkout.name, *figures])
    table([f"µs of CPU in {medium}, {FEW_SLOTS} slots", "checkout", *CORPORA], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--items", type=int, default=1_000_000, help="pending requests")
    parser.add_argument("--before", metavar="PYTHON", help="that of another checkout")
    parser.add_argument("--only", choices=MEDIA, help="one of the two")
    parser.add_argument("--measure", metavar="CHECKOUT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        sys.path[:0] = [options.measure, str(HERE)]
        return answer()
    from sidebyside import ROOT

    from tests.redis_backend.server import described, executable, missing

    media = [options.only] if options.only else [*MEDIA]
    if "redis" in media:
        server = described()
        print(server)
        if missing():
            media.remove("redis")
        elif "jemalloc" not in server or "Redis" not in server:
            print("warning: not Redis with jemalloc, so the bytes compare with nothing")
        os.environ["REDIS_SERVER"] = executable() or ""
    checkouts = [Checkout("this", sys.executable, ROOT)]
    if options.before:
        checkouts.insert(0, Checkout("before", options.before, root_of(options.before)))
    try:
        few = min(FEW, options.items // 10)
        for medium in media:
            cost(checkouts, medium, min(CHUNK, options.items // 10))
            # a job has an object for each slot
            rows = ROWS if medium == "redis" else ROWS[:2]
            weigh(checkouts, medium, [*((r, options.items) for r in rows), ("1,000 slots", few)])
            if medium == "redis":
                weigh(checkouts[-1:], "redis, over a budget", [("20 slots", few)])
    finally:
        for checkout in checkouts:
            checkout.end()


if __name__ == "__main__":
    main()
