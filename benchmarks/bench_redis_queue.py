"""RedisDurableScheduler beside scrapy-redis: `python benchmarks/bench_redis_queue.py`.

On one server that this starts: the memory of pending requests; then the demo's site, crawled by
four workers of each in turn, without kills: calls that a page costs, and pages a second. A call is
what a client sends before it waits for an answer; the server's own count is of what it has read.
"""

import contextlib
import statistics
import tempfile
import time
from pathlib import Path

from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.queue import PriorityQueue
from sidebyside import in_turns, parser_of, redis_server, spread, table
from streams import shop

from tests.redis.server import described
from tests.redis.workers import StoreWorker

PENDING = 100_000
ENDS = 0.1
"""Of the pages, left out at either end of what is timed: workers start and stop there."""
SIDES = {
    "scrapy-bloom": {
        "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
        "SCHEDULER": "scrapy_bloom.RedisDurableScheduler",
        "BLOOM_CAPACITY": 10_000,
    },
    "scrapy-redis": {
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "SCHEDULER_PERSIST": True,
        # without it a worker that finds the queue empty for a moment ends
        "SCHEDULER_IDLE_BEFORE_CLOSE": 5,
    },
}


def page(number, slots):
    """Return a request as a callback's output has it after Scrapy's middlewares."""
    url, referer = shop(number, number % slots)
    meta = {"depth": 3, "download_slot": url.split("/")[2]}
    return Request(url, meta=meta, headers={"Referer": referer})


def info(server, section, name):
    """Return what the server says of itself."""
    with server.client() as client:
        return client.info(section).get(name, 0)


def join(server, **settings):
    """Return a worker of our own crawl."""
    settings = {"BLOOM_CAPACITY": PENDING, "BLOOM_REDIS_TIMEOUT": 5, **settings}
    return StoreWorker(server.url, "bench", **settings)


def push(worker, first, slots):
    """Push those of fifty pages that are new, in one call."""
    for number in range(first, first + 50):
        request = page(number, slots)
        if not worker.dupefilter.request_seen(request):
            worker.store.push(request, ())
    worker.exchange()


def fill(server, slots):
    """Push PENDING requests to our crawl; return bytes a request, and those of the filter."""
    server.command("FLUSHALL")
    before = info(server, "memory", "used_memory")
    worker = join(server)
    worker.store._leaving = True  # it claims nothing
    strings = worker.dupefilter.shared.nbytes
    for first in range(0, PENDING, 50):
        push(worker, first, slots)
    while worker.store.unsent:
        worker.exchange()
    worker.leave()
    used = info(server, "memory", "used_memory") - before
    return (used - strings) / PENDING, strings / PENDING


def fill_scrapy_redis(server):
    """Push the same with scrapy-redis's queue and dupefilter; return bytes a request."""
    server.command("FLUSHALL")
    before = info(server, "memory", "used_memory")
    crawler = get_crawler(Spider, settings_dict={"REDIS_URL": server.url})
    crawler.spider = spider = Spider.from_crawler(crawler, "spider")
    with server.client() as client:
        queue = PriorityQueue(client, spider, "%(spider)s:requests")
        seen = RFPDupeFilter(client, "spider:dupefilter")
        for request in (page(number, 1000) for number in range(PENDING)):
            if not seen.request_seen(request):
                queue.push(request)
    return (info(server, "memory", "used_memory") - before) / PENDING


def server_time(server, count=20_000):
    """Return the microseconds of the server for a request that is tested, pushed, claimed and
    acknowledged, fifty a call, and for a call that has nothing to say."""
    server.command("FLUSHALL")
    worker = join(server, capacity=50)
    server.command("CONFIG", "RESETSTAT")
    for first in range(0, count, 50):
        push(worker, first, 1000)
        while worker.store.pending:
            worker.store.done(worker.store.next())
    each = info(server, "commandstats", "cmdstat_evalsha")["usec"] / count
    server.command("CONFIG", "RESETSTAT")
    for _ in range(1000):
        worker.exchange()
    idle = info(server, "commandstats", "cmdstat_evalsha")["usec"] / 1000
    worker.close()
    return each, idle


def crawl(folder, server, side, workers):
    """Crawl the demo's site; return pages a second, the site's account, and reads and calls a
    page."""
    import harness

    folder.mkdir()
    server.command("FLUSHALL")
    urls = {"REDIS_URL": server.url, "BLOOM_REDIS_URL": server.url, "LOG_LEVEL": "WARNING"}
    total = len(harness.pages(harness.SESSION))
    marks = {int(total * share): None for share in (ENDS, 1 - ENDS)}
    stats = [folder / f"{number}.stats" for number in range(workers)]
    with contextlib.ExitStack() as ends:
        site = ends.enter_context(harness.serve(folder))
        before, processes = info(server, "stats", "total_reads_processed"), []
        for place in stats:
            options = {**SIDES[side], **urls, "STATS_FILE": place}
            pairs = [w for name, value in options.items() for w in ("-s", f"{name}={value}")]
            command = ("scrapy", "crawl", "site", "-a", f"start={site.url}", *pairs)
            started = harness.started(*command, log=place.with_suffix(".log"))
            processes.append(ends.enter_context(started))
        until = time.monotonic() + 300
        while any(process.poll() is None for process in processes):
            fetched = site.fetched()
            for mark, reached in marks.items():
                if reached is None and fetched >= mark:
                    marks[mark] = time.perf_counter(), fetched
            if time.monotonic() > until:
                raise RuntimeError(harness.tail(folder / "0.log"))
            time.sleep(0.01)
        found = harness.account(site)
    (began, low), (ended, high) = marks.values()
    calls = sum(harness.read(place).get("scheduler/calls", 0) for place in stats)
    reads = info(server, "stats", "total_reads_processed") - before
    counts = found.fetched, len(found.missed), len(found.twice)
    return (high - low) / (ended - began), *counts, reads / found.fetched, calls / found.fetched


def memory(server):
    """Print bytes a pending request, and the time of the server."""
    sample = page(12345, 1000)
    print(f"requests such as {sample.url} with a Referer and a depth, {PENDING:,} pending:")
    rows = [
        [f"scrapy-bloom, {slots:,} slots", *(f"{n:.1f}" for n in fill(server, slots))]
        for slots in (1, 1000, 6000, 20_000, PENDING)
    ]
    rows.append(["scrapy-redis", f"{fill_scrapy_redis(server):.1f}", "with its set"])
    table(["", "bytes a request", "of the filter"], rows)
    each, idle = server_time(server)
    print(f"the server works {each:.0f} µs a request, fifty a call; {idle:.0f} µs an empty call")


def speed(server, folder, options):
    """Print pages a second and calls a page, in turns."""
    print(f"the demo's site, {options.workers} workers, in turns:")
    runs = in_turns(
        SIDES,
        options.rounds,
        lambda side: crawl(folder / f"{time.monotonic_ns()}", server, side, options.workers),
    )
    rows = []
    for side, found in runs.items():
        medians = [statistics.median(each) for each in zip(*found, strict=True)]
        ratio = spread(*([run[0] for run in runs[which]] for which in (side, "scrapy-redis")))[0]
        rows.append([side, ratio, *(f"{each:,.2f}" for each in medians)])
    head = ["", "times scrapy-redis", "pages a second", "pages", "missed", "twice"]
    table([*head, "reads a page", "calls a page"], rows)


def main():
    options = parser_of(__doc__, rounds=3, workers=4).parse_args()
    print(described())
    with tempfile.TemporaryDirectory() as name, redis_server() as server:
        memory(server)
        speed(server, Path(name), options)


if __name__ == "__main__":
    main()
