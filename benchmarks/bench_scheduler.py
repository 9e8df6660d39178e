"""What durability costs: `python benchmarks/bench_scheduler.py [--pairs 20]`.

All ratios are of figures taken in turns in one run; the time of an fsync stands beside
them, because Scrapy's SQLite queues take one for each push.
"""

import contextlib
import gc
import io
import os
import resource
import statistics
import tempfile
import time
from pathlib import Path

from scrapy import Request
from scrapy.squeues import PickleLifoSQLiteQueue
from scrapy.utils.misc import build_from_crawler
from sidebyside import forked, in_turns, parser_of, seconds_of, spread, table

from tests.job.engine import STOCK, Job

BATCH = 2000
SIDES = ("stock", "durable")


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


def fsync_time(folder):
    """Return the median of 200 fsyncs of 4 KiB, in seconds."""
    times = []
    with (folder / "fsync").open("wb", buffering=0) as file:
        for _ in range(200):
            file.write(bytes(4096))
            began = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - began)
    return statistics.median(times)


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


def pushes(jobs, folder, rounds):
    """Pushes of real requests: Scrapy's SQLite queue, the scheduler over Scrapy's disk queues."""
    crawler = jobs["durable"].crawler
    sqlite = build_from_crawler(PickleLifoSQLiteQueue, crawler, str(folder / "q" / "0"))
    figures = {"sqlite": [], "stock": [], "durable": []}
    for _ in range(rounds):
        batch = requests(jobs["durable"].spider, BATCH)
        with timed(figures["sqlite"], BATCH // 5):
            for request in batch[: BATCH // 5]:
                sqlite.push(request)
        for name, job in jobs.items():
            with timed(figures[name], BATCH):
                push_all(job, batch)
    rows = []
    for name, label in (
        ("sqlite", "Scrapy's SQLite queue, push alone"),
        ("stock", "Scrapy's scheduler, disk queues"),
        ("durable", "DurableScheduler, with commits"),
    ):
        median, cpu = map(statistics.median, zip(*figures[name], strict=True))
        ratio = spread(*([each for each, _ in figures[which]] for which in (name, "durable")))[0]
        rows.append([label, f"{median * 1e6:.1f}", f"{cpu * 1e6:.1f}", f"{1 / median:,.0f}", ratio])
    table(["", "µs a push", "of CPU", "a second", "times durable"], rows)
    sqlite.close()


def rounds_of_requests(jobs, rounds):
    """The scheduler's own time for a request that is pushed, popped and finished."""
    figures = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            batch = requests(job.spider, BATCH)
            with timed(figures[name], BATCH):
                for start in range(0, BATCH, 10):
                    for request in batch[start : start + 10]:
                        job.scheduler.enqueue_request(request)
                    for _ in range(10):
                        job.done(job.pop())
                push_all(job, ())
    for name, times in figures.items():
        print(
            f"  {name:8} {statistics.median(cpu for _, cpu in times) * 1e6:6.1f} µs of CPU a request"
        )


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
        f" memory grew by {found['memory'] / 1024:.1f} MiB, the file has {size / 1e6:,.0f} MB"
    )


def opened(folder):
    """Return what it takes to open the large job, in a process that has opened a small one."""
    small = Job(folder / "small").open().pushed("a")
    small.names()
    small.close()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    job, times = Job(folder / "million"), []
    with timed(times):
        job.open()
    with timed(times, 10_000):
        for _ in range(10_000):
            job.done(job.pop())
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    found = {"count": len(job.scheduler) + 10_000, "opened": times[0], "popped": times[1]}
    job.drop()
    return {**found, "memory": grown}


def crawls(folder, pairs):
    """Whole crawls of the embedded site in turns, each with a job directory."""
    import harness

    def crawl(name):
        before = seconds_of(resource.getrusage(resource.RUSAGE_CHILDREN))
        settings = {"LOG_LEVEL": "WARNING", **({"ADDONS": "{}"} if name == "stock" else {})}
        place = folder / f"crawl-{name}-{time.monotonic_ns()}"
        place.mkdir()
        with harness.serve(place) as site, contextlib.redirect_stdout(io.StringIO()):
            run = harness.crawl(site, place / "job", name, settings=settings)
        assert run.reason == "finished", run
        used = seconds_of(resource.getrusage(resource.RUSAGE_CHILDREN)) - before
        return run.stats["elapsed_time_seconds"], used  # the crawl's and the site's

    runs = in_turns(SIDES, pairs, crawl)
    for which, what in enumerate(("wall", "CPU")):
        middle, span = spread(*([run[which] for run in runs[name]] for name in SIDES[::-1]))
        print(f"  of stock's {what} time, durable takes {middle} (median of {pairs}; {span})")


def main():
    options = parser_of(
        __doc__, pairs=(0, "of whole crawls"), pending=1_000_000, rounds=9
    ).parse_args()
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        gc.freeze()
        print(f"An fsync takes {fsync_time(folder) * 1e3:.2f} ms; load {os.getloadavg()[0]:.1f}")
        print("Pushes of real requests, median of rounds in turns:")
        with both(folder / "pushes") as jobs:
            pushes(jobs, folder, options.rounds)
        print("Push, pop and finish:")
        with both(folder / "rounds") as jobs:
            rounds_of_requests(jobs, options.rounds)
        if options.pending:
            print("A large job:")
            million(folder, options.pending)
        if options.pairs:
            print("The embedded site, job directory on:")
            crawls(folder, options.pairs)


if __name__ == "__main__":
    main()
