"""What durability costs: `python benchmarks/bench_scheduler.py [--rounds N]`.

All ratios are of figures taken in turns in one run; the time of an fsync stands beside them.
"""

import contextlib
import gc
import os
import statistics
import tempfile
import time
from pathlib import Path

from scrapy import Request
from sidebyside import forked, parser_of, resident, spread, table

from tests.crawl.engine import STOCK, Job

BATCH = 2000


def requests(spider, count, start=0):
    """Return requests as a crawl has them after two middlewares."""
    return [
        Request(
            f"https://example.com/docs/part-{n % 30:02}/chapter-{n}.html",
            callback=spider.parse,
            headers={"Referer": f"https://example.com/docs/part-{n % 30:02}/"},
            meta={"depth": 3, "link_text": "Chapter", "download_timeout": 180.0},
            dont_filter=True,
        )
        for n in range(start, start + count)
    ]


@contextlib.contextmanager
def timed(figures, count=1):
    """Add the seconds of one of `count` to `figures`, of the clock and of the CPU."""
    began = time.perf_counter(), time.process_time()
    yield
    ended = time.perf_counter(), time.process_time()
    figures.append([(end - begin) / count for begin, end in zip(began, ended, strict=True)])


@contextlib.contextmanager
def both(folder):
    """Open a job of stock Scrapy and one of ours, and drop them in the end."""
    jobs = {
        "stock": Job(folder / "stock", scheduler=STOCK).open(),
        "durable": Job(folder / "durable").open(),
    }
    yield jobs
    for job in jobs.values():
        job.drop()


def push_all(job, batch):
    """Push requests, and commit them where that is known."""
    for request in batch:
        job.scheduler.enqueue_request(request)
    if hasattr(job.scheduler, "_ledger"):
        job.commit()


def pushes(jobs, rounds):
    """Print medians of pushes: the scheduler over Scrapy's disk queues, and ours with commits."""
    figures = {name: [] for name in jobs}
    for _ in range(rounds):
        batch = requests(jobs["durable"].spider, BATCH)
        for name, job in jobs.items():
            with timed(figures[name], BATCH):
                push_all(job, batch)
    rows = []
    for name, times in figures.items():
        wall, cpu = map(statistics.median, zip(*times, strict=True))
        ratio = spread(*([cpu for _, cpu in figures[which]] for which in (name, "stock")))[0]
        rows.append([name, f"{wall * 1e6:.1f}", f"{cpu * 1e6:.1f}", ratio])
    table(["", "µs a request", "of CPU", "CPU, of stock"], rows)


def million(folder, count):
    """Open a job with so many pending requests."""
    job, written = Job(folder / "million").open(), []
    with timed(written):
        for start in range(0, count, BATCH):
            push_all(job, requests(job.spider, BATCH, start))
    print(f"  wrote {count:,} rows in {written[0][0]:.1f} s", flush=True)
    job.close()
    size = (folder / "million" / "requests.sqlite").stat().st_size
    found, _ = forked("opening", lambda answer: answer(opened(folder)))
    print(
        f"  opened {found['count']:,} in {found['opened'][0]:.3f} s ({found['opened'][1]:.3f} s of"
        f" CPU), popped 10,000 at {found['popped'][1] * 1e6:.0f} µs of CPU;"
        f" memory grew by {found['memory'] / 2**20:.1f} MiB, the file has {size / 1e6:,.0f} MB"
    )


def opened(folder):
    """Return what it takes to open the large job, in a process that has opened a small one."""
    small = Job(folder / "small").open().pushed("a")
    small.names()
    small.close()
    before = resident()
    job, times = Job(folder / "million"), []
    with timed(times):
        job.open()
    with timed(times, 10_000):
        for _ in range(10_000):
            job.done(job.pop())
    grown = resident() - before
    count = len(job.scheduler) + 10_000
    job.drop()
    return {"count": count, "opened": times[0], "popped": times[1], "memory": grown}


def main():
    options = parser_of(__doc__, pending=1_000_000, rounds=9).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        gc.freeze()
        syncs = []
        with (folder / "fsync").open("wb", buffering=0) as file:
            for _ in range(200):
                file.write(bytes(4096))
                with timed(syncs):
                    os.fsync(file.fileno())
        sync = statistics.median(wall for wall, _ in syncs)
        print(f"An fsync takes {sync * 1e3:.2f} ms; load {os.getloadavg()[0]:.1f}")
        print("Pushes of real requests, median of rounds in turns:")
        with both(folder / "pushes") as jobs:
            pushes(jobs, options.rounds)
        if options.pending:
            print("A large job:")
            million(folder, options.pending)


if __name__ == "__main__":
    main()
