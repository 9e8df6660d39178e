"""What delayed requests cost in a job, and how late they are:

    python tests/benchmarks/bench_later.py [--items 100000]

Memory is that of the process, bytes those of `requests.sqlite`. A real DurableScheduler has pushed
the requests. Lateness is taken in real crawls: until a request comes to the downloader, where each
is due at a moment of its own; until it is pending, where all are due at once, since then the engine
asks as fast as it can.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sidebyside import resident, table

ALONE = 200
"""Delayed requests that are due one by one."""
COMMITS = 50
TURNS = 60


def request(number: int, **meta):
    """Return a page of one of a thousand shops."""
    from scrapy import Request

    host = f"http://shop-{number % 1000:05}.example.com/"
    url = f"{host}catalogue/part-{number % 30:02}/item-{number}.html"
    return Request(url, dont_filter=True, meta=meta)


def weigh(items: int) -> None:
    from tests.job.engine import Job

    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder, "job")).open()
        rows, file = [], Path(folder, "job", "requests.sqlite")
        empty = file.stat().st_size
        for number in range(items):
            if number in (items // 10, items // 2):
                rows.append((f"{number:,} delayed", f"{resident() / 1e6:.1f} MB"))
            job.scheduler.enqueue_request(request(number, bloom_not_before=3600 + number))
            if number % 200 == 0:
                job.commit()
        rows.append((f"{items:,} delayed", f"{resident() / 1e6:.1f} MB"))
        began = time.process_time()
        assert job.pop() is None
        rows.append(("a look for what is due", f"{(time.process_time() - began) * 1e6:.0f} µs"))
        job.close("shutdown")
        rows.append(("a row of the file", f"{(file.stat().st_size - empty) / items:.0f} B"))
        table(("", ""), rows)


def commits(items: int) -> None:
    """Print what a commit of one request costs in CPU time beside delayed ones, and without."""
    from tests.job.engine import Job

    with tempfile.TemporaryDirectory() as folder:
        jobs = {}
        for name, delayed in (("none", 0), ("delayed", items)):
            jobs[name] = job = Job(Path(folder, name)).open()
            for number in range(delayed):
                job.scheduler.enqueue_request(request(number, bloom_not_before=36000))
            job.commit()
        best = dict.fromkeys(jobs, 1e9)
        for number in range(TURNS):
            for name, job in jobs.items():
                began = time.process_time()
                for _ in range(COMMITS):
                    job.scheduler.enqueue_request(request(number))
                    job.commit()
                    job.done(job.pop())
                    job.commit()
                taken = (time.process_time() - began) / COMMITS / 2 * 1e6
                best[name] = min(taken, best[name])
        rows = [(f"a commit beside {name}", f"{each:.1f} µs") for name, each in best.items()]
        table(("", ""), [*rows, ("difference", f"{best['delayed'] - best['none']:+.1f} µs")])
        for job in jobs.values():
            job.drop()


def crawl(items: int, *, at_once: bool) -> None:
    """Print how late the requests of a real crawl are. To be run in a process of its own."""
    import scrapy
    from scrapy.crawler import CrawlerProcess
    from twisted.internet.task import LoopingCall

    late: list[float] = []
    due_at = time.time() + (10_000 if at_once else 2)

    class Spider(scrapy.Spider):
        name = "later"

        async def start(self):
            chance = random.Random(1)
            push = self.crawler.engine._slot.scheduler.enqueue_request
            for number in range(items):
                due = due_at if at_once else due_at + chance.uniform(0, items / 20)
                meta = {"bloom_not_before": due, "due": due}
                push(scrapy.Request(f"data:,{number}", meta=meta, dont_filter=True))
            if at_once:
                self.watch()
            for request in ():
                yield request

        def watch(self):
            store = self.crawler.engine._slot.scheduler.ledger.store
            left, due_at = store.later, time.time() + 2
            # soon, however long the pushes took
            store._file.execute("UPDATE request SET due = ? WHERE state = 2", (due_at,))
            store.records.recount()

            used = None

            def look():
                nonlocal left, used
                now = time.time() - due_at
                moved = left - store.later
                late.extend([now] * moved)
                left -= moved
                if now >= 0 and used is None:
                    used = time.process_time()
                if not left:
                    print(f"CPU time until all are pending: {time.process_time() - used:.2f} s")
                    print_late(late)
                    os._exit(0)

            LoopingCall(look).start(0.005)

        def parse(self, response):
            pass

    class Middleware:
        def process_request(self, request):
            late.append(time.time() - request.meta["due"])

    with tempfile.TemporaryDirectory() as folder:
        process = CrawlerProcess(
            {
                "ADDONS": {"scrapy_bloom.Addon": 300},
                "JOBDIR": folder,
                "LOG_LEVEL": "ERROR",
                "TELNETCONSOLE_ENABLED": False,
                "DOWNLOADER_MIDDLEWARES": {} if at_once else {Middleware: 1},
            }
        )
        process.crawl(Spider)
        process.start()
    print_late(late)


def print_late(late: list[float]) -> None:
    """Print the middle, the 99th percentile and the worst, and how many were early."""
    ordered = sorted(late)
    shares = [ordered[int(share * (len(ordered) - 1))] for share in (0.5, 0.99, 1)]
    figures = ", ".join(
        f"{name} {s * 1e3:.0f} ms" for name, s in zip(("half", "p99", "all"), shares, strict=True)
    )
    print(
        f"{len(ordered):,} requests: {figures}; early: {sum(each < 0 for each in ordered)}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--part", choices=("weigh", "commits", "alone", "at once"))
    options = parser.parse_args()
    if options.part is None:
        for part in ("weigh", "commits", "alone", "at once"):
            print(f"\n{part}", flush=True)
            command = [sys.executable, __file__, "--items", str(options.items), "--part", part]
            subprocess.run(command, check=True)
    elif options.part == "weigh":
        weigh(options.items)
    elif options.part == "commits":
        commits(options.items)
    else:
        at_once = options.part == "at once"
        crawl(options.items if at_once else ALONE, at_once=at_once)


if __name__ == "__main__":
    main()
