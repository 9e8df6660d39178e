"""What delayed requests cost in a job, and how late they are:

    python benchmarks/bench_later.py [--items 100000]

Memory is that of the process, bytes those of `requests.sqlite`. A real DurableScheduler has pushed
the requests. Lateness is taken in real crawls: until a request comes to the downloader, where each
is due at a moment of its own; until it is pending, where all are due at once, since then the engine
asks as fast as it can.
"""

import random
import tempfile
import time
from pathlib import Path

from crawls import OURS, crawl
from scrapy import Request, Spider
from sidebyside import forked, parser_of, resident, table

ALONE = 200
"""Delayed requests that are due one by one, in ten seconds."""
COMMITS = 50
TURNS = 60


def page(number, **meta):
    """Return a request for a page of one of a thousand shops."""
    host = f"http://shop-{number % 1000:05}.example.com/"
    url = f"{host}catalogue/part-{number % 30:02}/item-{number}.html"
    return Request(url, dont_filter=True, meta=meta)


def weigh(items, answer):
    """Answer with the memory and the bytes of delayed requests."""
    from tests.job.engine import Job

    with tempfile.TemporaryDirectory() as folder:
        job = Job(Path(folder)).open()
        rows, file = [], Path(folder, "requests.sqlite")
        empty = file.stat().st_size
        for number in range(items + 1):
            if number in (items // 10, items // 2, items):
                rows.append((f"{number:,} delayed", f"{resident() / 1e6:.1f} MB"))
            if number < items:
                job.scheduler.enqueue_request(page(number, bloom_not_before=3600 + number))
            if number % 200 == 0:
                job.commit()
        began = time.process_time()
        assert job.pop() is None
        rows.append(("a look for what is due", f"{(time.process_time() - began) * 1e6:.0f} µs"))
        job.close("shutdown")
        rows.append(("a row of the file", f"{(file.stat().st_size - empty) / items:.0f} B"))
    answer(rows)


def commits(items, answer):
    """Answer with the CPU time of a commit of one request beside delayed ones, and without."""
    from tests.job.engine import Job

    with tempfile.TemporaryDirectory() as folder:
        jobs = {}
        for name, delayed in (("none", 0), ("delayed", items)):
            jobs[name] = job = Job(Path(folder, name)).open()
            for number in range(delayed):
                job.scheduler.enqueue_request(page(number, bloom_not_before=36000))
            job.commit()
        best = dict.fromkeys(jobs, 1e9)
        for number in range(TURNS):
            for name, job in jobs.items():
                began = time.process_time()
                for _ in range(COMMITS):
                    job.scheduler.enqueue_request(page(number))
                    job.commit()
                    job.done(job.pop())
                    job.commit()
                taken = (time.process_time() - began) / COMMITS / 2 * 1e6
                best[name] = min(taken, best[name])
        rows = [(f"a commit beside {name}", f"{each:.1f} µs") for name, each in best.items()]
        for job in jobs.values():
            job.drop()
    answer([*rows, ("difference", f"{best['delayed'] - best['none']:+.1f} µs")])


class Later(Spider):
    """Pushes delayed requests, and notes how late each comes to the downloader, or is pending."""

    name = "later"

    async def start(self):
        self.late = []
        due_at = time.time() + (10_000 if self.at_once else 2)
        chance = random.Random(1)
        push = self.crawler.engine._slot.scheduler.enqueue_request
        for number in range(self.items):
            due = due_at if self.at_once else due_at + chance.uniform(0, self.items / 20)
            meta = {"bloom_not_before": due, "due": due}
            push(Request(f"data:,{number}", meta=meta, dont_filter=True))
        if self.at_once:
            self.watch()
        for request in ():
            yield request

    def watch(self):
        """Make all due in two seconds, however long the pushes took; look when they are pending."""
        from twisted.internet.task import LoopingCall

        store = self.crawler.engine._slot.scheduler.ledger.store
        due_at = time.time() + 2
        store._file.execute("UPDATE request SET due = ? WHERE state = 2", (due_at,))
        store.records.recount()
        used = None

        def look():
            nonlocal used
            now = time.time() - due_at
            self.late += [now] * (self.items - len(self.late) - store.later)
            if now >= 0 and used is None:
                used = time.process_time()
            if not store.later:
                self.answer({"late": self.late, "seconds": time.process_time() - used})

        LoopingCall(look).start(0.005)

    def parse(self, response):
        if len(self.late) == self.items:
            self.answer({"late": self.late})


class Lateness:
    """A downloader middleware that notes how late each request comes."""

    def __init__(self, crawler):
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler):
        return cls(crawler)

    def process_request(self, request):
        if not self._crawler.spider.at_once:
            self._crawler.spider.late.append(time.time() - request.meta["due"])


def lateness(items, *, at_once):
    """Return how late the requests of a real crawl are: rows of the table."""
    settings = {**OURS, "DOWNLOADER_MIDDLEWARES": {Lateness: 1}}
    found = crawl(Later, settings, items=items, at_once=at_once)
    late = sorted(found["late"])
    shares = {"half": 0.5, "p99": 0.99, "all": 1}
    times = [
        f"{name} {late[int(share * (items - 1))] * 1e3:.0f} ms" for name, share in shares.items()
    ]
    rows = [("late", ", ".join(times)), ("early", f"{sum(each < 0 for each in late)}")]
    return [*rows, ("CPU time until all are pending", f"{found['seconds']:.2f} s")][: 2 + at_once]


def main():
    items = parser_of(__doc__, items=100_000).parse_args().items
    for name, rows in (
        (f"{items:,} delayed requests", forked("weigh", lambda answer: weigh(items, answer))[0]),
        (f"beside {items:,}", forked("commits", lambda answer: commits(items, answer))[0]),
        (f"{ALONE}, each due alone", lateness(ALONE, at_once=False)),
        (f"{items:,} due at once", lateness(items, at_once=True)),
    ):
        print()
        table((name, ""), rows)


if __name__ == "__main__":
    main()
