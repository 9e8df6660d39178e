"""RedisBloomDupeFilter beside scrapy-redis's and scrapy-redis-bloomfilter's dupefilters.

All three are given the same real streams, one after the other, on one server that this
starts; round trips are the server's own count of what it has read. Run it with
SCRAPY_BLOOM_DATA for more streams than the sample:

    python tests/benchmarks/bench_redis.py [--most LINES]
"""

import argparse
import contextlib
import io
import logging
import os
import time
from pathlib import Path

from sidebyside import SAMPLES, read, redis_server

# isort: split
from scrapy import Request
from scrapy.utils.misc import load_object
from scrapy.utils.test import get_crawler

from tests.redis_backend.server import missing

OURS = "scrapy_bloom.RedisBloomDupeFilter"
PEERS = {
    "scrapy-redis": "scrapy_redis.dupefilter.RFPDupeFilter",
    "scrapy-redis-bloomfilter": "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter",
    "scrapy-bloom": OURS,
}


def streams(most):
    """Yield the name of each stream and its URLs."""
    folder = Path(os.environ.get("SCRAPY_BLOOM_DATA", SAMPLES))
    for path in sorted(folder.glob("stream_*.txt.gz")):
        yield path.name.partition(".")[0], read(path)[:most]


def make(path, url):
    """Return the dupefilter of that class as scrapy-redis's scheduler makes it."""
    settings = {"REDIS_URL": url, "SCHEDULER_PERSIST": True, "BLOOM_REDIS_URL": url}
    crawler = get_crawler(settings_dict=settings)
    crawler.spider = crawler.spidercls.from_crawler(crawler, "spider")
    crawler.spider.crawler = crawler
    with contextlib.redirect_stdout(io.StringIO()):  # one of them prints
        return load_object(path).from_spider(crawler.spider)


def reads(servers):
    total = 0
    for server in servers:
        with server.client() as client:
            total += client.info("stats")["total_reads_processed"]
    return total


def measure(paths, urls, servers, url):
    """Return for each class seconds, how many URLs were new, and round trips.

    The dupefilters take turns, a thousand requests each, so that whatever else the
    machine does slows all of them. Making the requests is not counted.
    """
    for server in servers:
        server.command("FLUSHALL")
    dupefilters = [make(path, url) for path in paths]
    totals = [[0.0, 0, 0] for _ in paths]
    for dupefilter in dupefilters:
        dupefilter.request_seen(Request("http://warm.up/"))
    looking = -(reads(servers) - reads(servers))
    for start in range(0, len(urls), 1_000):
        for total, dupefilter in zip(totals, dupefilters, strict=True):
            requests = [Request(line) for line in urls[start : start + 1_000]]
            before = reads(servers)
            started = time.perf_counter()
            seen = sum(map(dupefilter.request_seen, requests))
            total[0] += time.perf_counter() - started
            total[1] += len(requests) - seen
            total[2] += reads(servers) - before - looking
    return totals


def report(name, urls, server):
    print(f"\n{name}: {len(urls):,} requests")
    totals = measure(PEERS.values(), urls, [server], server.url)
    ours = totals[-1][0]
    for peer, (seconds, new, trips) in zip(PEERS, totals, strict=True):
        times = "" if seconds == ours else f", scrapy-bloom is {seconds / ours:.1f} times as fast"
        print(
            f"  {peer:<26} {1e6 * seconds / len(urls):8.1f} µs a request, {new:,} new,"
            f" {trips:,} round trips{times}"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--most", type=int, default=60_000, help="lines of each stream")
    options = parser.parse_args()
    if reason := missing():
        print(reason)
        return
    logging.disable()
    with redis_server() as server:
        for name, urls in streams(options.most):
            report(name, urls, server)
    new_requests()


def new_requests():
    """Print what a request costs of which nobody has heard, on a server and a Cluster."""
    print("\nnew requests only")
    urls = [f"http://example.com/{number}" for number in range(10_000)]
    for kind in ("Server", "Cluster"):
        with redis_server(kind) as server:
            nodes = getattr(server, "nodes", [server])
            ((seconds, _, trips),) = measure([OURS], urls, nodes, server.url)
            print(
                f"  {kind:<8} {1e6 * seconds / len(urls):8.1f} µs a request, {trips:,}"
                f" round trips for {len(urls):,}"
            )


if __name__ == "__main__":
    main()
