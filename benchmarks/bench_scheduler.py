"""What durability costs: `python benchmarks/bench_scheduler.py [--pairs 20]`.

All ratios are of figures taken in turns in one run; the time of an fsync stands beside them.
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
from sidebyside import forked, in_turns, parser_of, resident, seconds_of, spread, table

from tests.crawl.engine import STOCK, Job

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
    parser = parser_of(__doc__, pairs=(0, "of whole crawls"), pending=1_000_000, rounds=9)
    options = parser.parse_args()
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
        if options.pairs:
            print("The embedded site, job directory on:")
            crawls(folder, options.pairs)


if __name__ == "__main__":
    main()
