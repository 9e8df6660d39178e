"""RedisDurableScheduler beside scrapy-redis: `python tests/benchmarks/bench_redis_queue.py`.

On one server that this starts: the memory of pending requests; how soon a new worker has its
first request out where 100,000 wait; then the demo's site, crawled by four workers of each in
turn, without kills: calls that a page costs, and pages a second. A call is what a client sends
before it waits for an answer; the server's own count is of what it has read.
"""

import contextlib
import tempfile
import time
from pathlib import Path

from sidebyside import parser_of, redis_server

# isort: split
import harness
from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.queue import PriorityQueue

from tests.redis_backend.server import described
from tests.redis_backend.workers import StoreWorker

PENDING = 100_000
FIRST_SHARE = 0.1
"""Of the pages, left out at either end of what is timed: workers start and stop there."""
OURS = {
    "DUPEFILTER_CLASS": "scrapy_bloom.RedisBloomDupeFilter",
    "SCHEDULER": "scrapy_bloom.RedisDurableScheduler",
    "BLOOM_CAPACITY": 10_000,
}
SCRAPY_REDISS = {
    "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
    "SCHEDULER_PERSIST": True,
    # without it a worker that finds the queue empty for a moment ends
    "SCHEDULER_IDLE_BEFORE_CLOSE": 5,
}


def page(number, slots):
    """Return a request as a callback's output has it after Scrapy's middlewares."""
    site = f"http://shop-{number % slots:05}.example.com"
    return Request(
        f"{site}/catalogue/part-{number % 30:02}/item-{number}.html",
        meta={"depth": 3, "download_slot": f"shop-{number % slots:05}.example.com"},
        headers={"Referer": f"{site}/catalogue/part-{number % 30:02}/"},
    )


def used(server):
    """Return the bytes that the server has allocated for data."""
    with server.client() as client:
        return client.info("memory")["used_memory"]


def join(server, **settings):
    """Return a worker of our own crawl."""
    settings = {"BLOOM_CAPACITY": PENDING, "BLOOM_REDIS_TIMEOUT": 5, **settings}
    return StoreWorker(server.url, "bench", **settings)


def push(worker, numbers, slots):
    """Push those pages that are new, in one call."""
    for number in numbers:
        request = page(number, slots)
        if not worker.dupefilter.request_seen(request):
            worker.store.push(request, ())
    worker.exchange()


def fill(server, slots):
    """Push PENDING requests to our crawl; return bytes a request, and those of the filter."""
    server.command("FLUSHALL")
    before = used(server)
    worker = join(server)
    worker.store._leaving = True  # it claims nothing
    strings = worker.dupefilter.shared.nbytes
    for first in range(0, PENDING, 50):
        push(worker, range(first, first + 50), slots)
    while worker.store.unsent:
        worker.exchange()
    worker.leave()
    return (used(server) - before) / PENDING, strings / PENDING


def fill_scrapy_redis(server):
    """Push the same with scrapy-redis's queue and dupefilter; return bytes a request."""
    server.command("FLUSHALL")
    before = used(server)
    crawler = get_crawler(Spider, settings_dict={"REDIS_URL": server.url})
    crawler.spider = spider = Spider.from_crawler(crawler, "spider")
    with server.client() as client:
        queue = PriorityQueue(client, spider, "%(spider)s:requests")
        seen = RFPDupeFilter(client, "spider:dupefilter")
        for number in range(PENDING):
            request = page(number, 1000)
            if not seen.request_seen(request):
                queue.push(request)
    return (used(server) - before) / PENDING


def first_request(server):
    """Return the seconds from nothing to the first request of what `fill` has left."""
    began = time.perf_counter()
    worker = join(server)
    assert worker.next() is not None
    took = time.perf_counter() - began
    worker.close()
    return took


def server_time(server, count=20_000):
    """Return the microseconds of the server for a request that is tested, pushed, claimed and
    acknowledged, fifty a call, and for a call that has nothing to say."""
    server.command("FLUSHALL")
    worker = join(server, capacity=50)
    server.command("CONFIG", "RESETSTAT")
    for first in range(0, count, 50):
        push(worker, range(first, first + 50), 1000)
        while worker.store.pending:
            worker.store.done(worker.store.next())
    each = spent(server) / count
    server.command("CONFIG", "RESETSTAT")
    for _ in range(1000):
        worker.exchange()
    idle = spent(server) / 1000
    worker.close()
    return each, idle


def spent(server):
    """Return the microseconds that the server has spent in scripts."""
    with server.client() as client:
        return client.info("commandstats")["cmdstat_evalsha"]["usec"]


def reads(server):
    """Return how many times the server has read what a client has sent."""
    with server.client() as client:
        return client.info("stats").get("total_reads_processed", 0)


def crawl(folder, server, settings, workers):
    """Crawl the demo's site; return its pages, pages a second, and reads and calls a page."""
    folder.mkdir()
    server.command("FLUSHALL")
    total = len(harness.pages(harness.SESSION))
    low, high = int(total * FIRST_SHARE), int(total * (1 - FIRST_SHARE))
    with contextlib.ExitStack() as ends:
        site = ends.enter_context(harness.serve(folder))
        before, began, ended = reads(server), None, None
        processes = []
        for number in range(workers):
            stats = folder / f"{number}.stats"
            options = {
                **settings,
                "REDIS_URL": server.url,
                "BLOOM_REDIS_URL": server.url,
                "STATS_FILE": stats,
                "LOG_LEVEL": "WARNING",
            }
            pairs = [w for name, value in options.items() for w in ("-s", f"{name}={value}")]
            command = ("scrapy", "crawl", "site", "-a", f"start={site.url}", *pairs)
            processes.append(
                ends.enter_context(harness.started(*command, log=folder / f"{number}.log"))
            )
        until = time.monotonic() + 300
        while any(process.poll() is None for process in processes):
            fetched = site.fetched()
            if began is None and fetched >= low:
                began = time.perf_counter(), fetched
            if ended is None and fetched >= high:
                ended = time.perf_counter(), fetched
            if time.monotonic() > until:
                raise RuntimeError(harness.tail(folder / "0.log"))
            time.sleep(0.01)
        found = harness.account(site)
        calls = sum(
            harness.read(folder / f"{n}.stats").get("scheduler/calls", 0) for n in range(workers)
        )
    seconds, pages = ended[0] - began[0], ended[1] - began[1]
    return found, pages / seconds, (reads(server) - before) / found.fetched, calls / found.fetched


def main():
    options = parser_of(__doc__, rounds=3, workers=4).parse_args()
    print(described())
    with tempfile.TemporaryDirectory() as name, redis_server() as server:
        memory(server)
        speed(server, Path(name), options)


def memory(server):
    """Print bytes a pending request, and how soon the first is out."""
    sample = page(12345, 1000)
    print(f"requests such as {sample.url} with a Referer and a depth, {PENDING:,} pending:")
    for slots in (1, 1000, 6000, 20_000, PENDING):
        each, strings = fill(server, slots)
        print(
            f"  scrapy-bloom, {slots:>7,} slots  {each - strings:6.0f} bytes a request, and"
            f" {strings:.1f} of the filter"
        )
        if slots == 1000:
            times = sorted(first_request(server) for _ in range(5))
            print(f"  a new worker has its first request after {times[2]:.2f} s")
    each, idle = server_time(server)
    print(f"  the server works {each:.0f} µs a request, fifty a call; {idle:.0f} µs an empty call")
    theirs = fill_scrapy_redis(server)
    print(f"  scrapy-redis                {theirs:6.0f} bytes a request, with its set")


def speed(server, folder, options):
    """Print pages a second and calls a page, in turns."""
    print(f"the demo's site, {options.workers} workers, in turns:")
    rates = {}
    for number in range(options.rounds):
        for name, settings in (("scrapy-bloom", OURS), ("scrapy-redis", SCRAPY_REDISS)):
            place = folder / f"{name}{number}"
            found, rate, read, calls = crawl(place, server, settings, options.workers)
            rates.setdefault(name, []).append(rate)
            print(
                f"  {name:<12}  {found.fetched:,} pages, {len(found.missed)} missed,"
                f" {len(found.twice)} twice; {rate:6.0f} pages a second;"
                f" {read:.2f} reads of the server a page"
                + (f", {calls:.2f} calls of the scheduler" if calls else ""),
                flush=True,
            )
    ours, theirs = (sorted(rates[name])[options.rounds // 2] for name in rates)
    print(f"  medians: {ours / theirs:.2f} times the pages a second")


if __name__ == "__main__":
    main()
