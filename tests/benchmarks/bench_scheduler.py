"""What durability costs: `python tests/benchmarks/bench_scheduler.py [--pairs 20]`.

All ratios are of figures taken in turns in one run; the time of an fsync stands beside
them, because Scrapy's SQLite queues take one for each push.
"""

import gc
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sidebyside import in_turns, parser_of

# isort: split
from scrapy import Request
from scrapy.squeues import PickleLifoSQLiteQueue
from scrapy.utils.misc import build_from_crawler

from tests.job.engine import STOCK, Job

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


def timed(function, things):
    """Return seconds a thing, of the clock and of the CPU."""
    began = time.perf_counter(), time.process_time()
    for thing in things:
        function(thing)
    ended = time.perf_counter(), time.process_time()
    return [(end - begin) / len(things) for begin, end in zip(began, ended, strict=True)]


def pushes(folder, rounds):
    """Pushes of real requests: Scrapy's SQLite queue, the scheduler over Scrapy's disk queues."""
    durable = Job(folder / "durable").open()
    stock = Job(folder / "stock", scheduler=STOCK).open()
    sqlite = build_from_crawler(PickleLifoSQLiteQueue, durable.crawler, str(folder / "q" / "0"))
    figures = {"sqlite": [], "stock": [], "durable": []}
    for _ in range(rounds):
        batch = requests(durable.spider, BATCH)
        figures["sqlite"].append(timed(sqlite.push, batch[: BATCH // 5]))
        figures["stock"].append(timed(stock.scheduler.enqueue_request, batch))

        def push_all(_, batch=batch):
            for request in batch:
                durable.scheduler.enqueue_request(request)
            durable.commit()

        figures["durable"].append([each / BATCH for each in timed(push_all, [None])])
    ratios = [a / b for (a, _), (b, _) in zip(figures["sqlite"], figures["durable"], strict=True)]
    for name, label in (
        ("sqlite", "Scrapy's SQLite queue, push alone"),
        ("stock", "Scrapy's scheduler, disk queues  "),
        ("durable", "DurableScheduler, with commits   "),
    ):
        median, cpu = map(statistics.median, zip(*figures[name], strict=True))
        print(
            f"  {label} {median * 1e6:8.1f} µs a push ({cpu * 1e6:6.1f} of CPU),"
            f" {1 / median:9,.0f} a second"
        )
    print(
        f"  DurableScheduler pushes {statistics.median(ratios):.1f} times as many as SQLite queues"
    )
    durable.drop()
    stock.drop()
    sqlite.close()


def rounds_of_requests(folder, rounds):
    """The scheduler's own time for a request that is pushed, popped and finished."""
    jobs = {
        "stock": Job(folder / "stock2", scheduler=STOCK).open(),
        "durable": Job(folder / "durable2").open(),
    }
    figures = {name: [] for name in jobs}
    for _ in range(rounds):
        for name, job in jobs.items():
            batch = requests(job.spider, BATCH)
            began = time.process_time()
            for start in range(0, BATCH, 10):
                for request in batch[start : start + 10]:
                    job.scheduler.enqueue_request(request)
                for _ in range(10):
                    job.done(job.pop())
            if name == "durable":
                job.commit()
            figures[name].append((time.process_time() - began) / BATCH)
    for name, times in figures.items():
        print(f"  {name:8} {statistics.median(times) * 1e6:6.1f} µs of CPU a request")
        jobs[name].drop()


def million(folder, count):
    """Open a job with so many pending requests."""
    job = Job(folder / "million").open()
    began = time.perf_counter()
    for start in range(0, count, BATCH):
        for request in requests(job.spider, BATCH, start):
            job.scheduler.enqueue_request(request)
        job.commit()
    print(f"  wrote {count:,} rows in {time.perf_counter() - began:.1f} s", flush=True)
    job.close()
    size = (folder / "million" / "requests.sqlite").stat().st_size
    script = f"""
import resource, sys, time
sys.path[:0] = {sys.path[:3]!r}
from pathlib import Path
from tests.job.engine import Job
small = Job(Path({str(folder)!r}) / "small").open()
small.push("a"); small.names(); small.close()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
job = Job(Path({str(folder)!r}) / "million")
began = time.perf_counter(), time.process_time()
job.open()
opened, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
began = time.process_time()
for _ in range(10_000):
    job.done(job.pop())
popped = (time.process_time() - began) / 10_000
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(f"  opened {{len(job.scheduler) + 10_000:,}} in {{opened:.3f}} s ({{cpu:.3f}} s of CPU),"
      f" popped 10,000 at {{popped * 1e6:.0f}} µs of CPU;"
      f" memory grew by {{(after - before) / 1024:.1f}} MiB, the file has {size / 1e6:,.0f} MB")
job.drop()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True)


def crawls(folder, pairs):
    """Whole crawls of the embedded site in turns, each with a job directory."""
    import contextlib
    import io

    import harness

    def crawl(name):
        place = folder / f"crawl-{name}"
        place.mkdir()
        before = cpu()
        with harness.serve(place) as site, contextlib.redirect_stdout(io.StringIO()):
            settings = {"LOG_LEVEL": "WARNING", **({"ADDONS": "{}"} if name == "stock" else {})}
            run = harness.crawl(site, place / "job", name, settings=settings)
        assert run.reason == "finished", run
        shutil.rmtree(place)
        return run.stats["elapsed_time_seconds"], cpu() - before

    runs = in_turns(("stock", "durable"), pairs, crawl)
    pairs_of = [*zip(runs["durable"], runs["stock"], strict=True)]
    ratios = {
        what: [ours[which] / stock[which] for ours, stock in pairs_of]
        for which, what in enumerate(("wall", "CPU"))
    }
    for what, found in ratios.items():
        low, middle, high = statistics.quantiles(found, n=4) if pairs > 1 else found * 3
        print(
            f"  of stock's {what} time, durable takes {middle:.3f} (median of {pairs} pairs;"
            f" quartiles {low:.3f} and {high:.3f})"
        )


def cpu():
    """Return the CPU seconds of all processes that have ended: crawl and site."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main():
    options = parser_of(
        __doc__, pairs=(0, "of whole crawls"), pending=1_000_000, rounds=9
    ).parse_args()
    folder = Path(tempfile.mkdtemp(prefix="bench-"))
    try:
        gc.freeze()
        print(f"An fsync takes {fsync_time(folder) * 1e3:.2f} ms; load {os.getloadavg()[0]:.1f}")
        print("Pushes of real requests, median of rounds in turns:")
        pushes(folder, options.rounds)
        print("Push, pop and finish:")
        rounds_of_requests(folder, options.rounds)
        if options.pending:
            print("A large job:")
            million(folder, options.pending)
        if options.pairs:
            print("The embedded site, job directory on:")
            crawls(folder, options.pairs)
        print(f"Peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
