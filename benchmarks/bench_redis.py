"""RedisBloomDupeFilter beside scrapy-redis's and scrapy-redis-bloomfilter's dupefilters.

All three are given the same real streams (SCRAPY_BLOOM_DATA, or the sample) by turns, on one
server that this starts; round trips are the server's own count of what it has read.

    python benchmarks/bench_redis.py [--most LINES]
"""

import contextlib
import io
import logging
import time

from scrapy import Request
from scrapy.utils.misc import load_object
from scrapy.utils.test import get_crawler
from sidebyside import parser_of, redis_server, table
from streams import DATA, read

OURS = "scrapy_bloom.RedisBloomDupeFilter"
PEERS = {
    "scrapy-redis": "scrapy_redis.dupefilter.RFPDupeFilter",
    "scrapy-redis-bloomfilter": "scrapy_redis_bloomfilter.dupefilter.RFPDupeFilter",
    "scrapy-bloom": OURS,
}


def make(path, url):
    """Return the dupefilter of that class as scrapy-redis's scheduler makes it."""
    settings = {"REDIS_URL": url, "SCHEDULER_PERSIST": True, "BLOOM_REDIS_URL": url}
    crawler = get_crawler(settings_dict=settings)
    crawler.spider = crawler.spidercls.from_crawler(crawler, "spider")
    crawler.spider.crawler = crawler
    with contextlib.redirect_stdout(io.StringIO()):  # one of them prints
        return load_object(path).from_spider(crawler.spider)


def reads(servers):
    """Return how many times servers have read what a client has sent."""
    total = 0
    for server in servers:
        with server.client() as client:
            total += client.info("stats")["total_reads_processed"]
    return total


def measure(paths, urls, server):
    """Return for each class microseconds a request, how many URLs were new, and round trips.

    The dupefilters take turns, a thousand requests each, so that whatever else the
    machine does slows all of them. Making the requests is not counted.
    """
    servers = getattr(server, "nodes", [server])
    for each in servers:
        each.command("FLUSHALL")
    dupefilters = [make(path, server.url) for path in paths]
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
            total[0] += (time.perf_counter() - started) * 1e6 / len(urls)
            total[1] += len(requests) - seen
            total[2] += reads(servers) - before - looking
    return totals


def main():
    most = parser_of(__doc__, most=(60_000, "lines of each stream")).parse_args().most
    logging.disable()
    rows = []
    with redis_server() as server:
        for path in sorted(DATA.glob("stream_*.txt.gz")):
            urls = read(path)[:most]
            totals = measure(PEERS.values(), urls, server)
            for peer, (each, new, trips) in zip(PEERS, totals, strict=True):
                stream = f"{path.name.partition('.')[0]}, {len(urls):,}: {peer}"
                rows.append([stream, each, new, trips, f"{each / totals[-1][0]:.1f}"])
    urls = [f"http://example.com/{number}" for number in range(10_000)]
    for kind in ("Server", "Cluster"):
        with redis_server(kind) as server:
            ((each, new, trips),) = measure([OURS], urls, server)
            rows.append([f"new requests only, {kind}: scrapy-bloom", each, new, trips, "1.0"])
    head = ["stream", "µs a request", "new", "round trips", "times ours"]
    table(head, [[name, f"{each:.1f}", *rest] for name, each, *rest in rows])


if __name__ == "__main__":
    main()
