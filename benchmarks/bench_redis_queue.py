"""The memory of pending requests in Redis, of RedisDurableScheduler and of scrapy-redis, on a
server that this starts.

    python benchmarks/bench_redis_queue.py [--pending N]
"""

from scrapy import Request, Spider
from scrapy.utils.test import get_crawler
from scrapy_redis.dupefilter import RFPDupeFilter
from scrapy_redis.queue import PriorityQueue
from sidebyside import parser_of, redis_server, table
from streams import shop

from tests.redis.server import described
from tests.redis.workers import StoreWorker

AT_ONCE = 50


def page(number, slots):
    """Return a request as a callback's output has it after Scrapy's middlewares."""
    url, referer = shop(number, number % slots)
    meta = {"depth": 3, "download_slot": url.split("/")[2]}
    return Request(url, meta=meta, headers={"Referer": referer})


def used(server):
    """Return the bytes that the server has in use."""
    with server.client() as client:
        return client.info("memory")["used_memory"]


def fill(server, pending, slots):
    """Push requests to our crawl; return bytes a request, and those of the filter."""
    server.command("FLUSHALL")
    before = used(server)
    settings = {"BLOOM_CAPACITY": pending, "BLOOM_REDIS_TIMEOUT": 5}
    worker = StoreWorker(server.url, "bench", **settings)
    worker.store._leaving = True  # it claims nothing
    strings = worker.dupefilter.shared.nbytes
    for number in range(pending):
        request = page(number, slots)
        if not worker.dupefilter.request_seen(request):
            worker.store.push(request, ())
        if number % AT_ONCE == AT_ONCE - 1:
            worker.exchange()
    while worker.store.unsent:
        worker.exchange()
    worker.leave()
    return (used(server) - before - strings) / pending, strings / pending


def fill_scrapy_redis(server, pending):
    """Push the same with scrapy-redis's queue and dupefilter; return bytes a request."""
    server.command("FLUSHALL")
    before = used(server)
    crawler = get_crawler(Spider, settings_dict={"REDIS_URL": server.url})
    crawler.spider = spider = Spider.from_crawler(crawler, "spider")
    with server.client() as client:
        queue = PriorityQueue(client, spider, "%(spider)s:requests")
        seen = RFPDupeFilter(client, "spider:dupefilter")
        for request in (page(number, 1000) for number in range(pending)):
            if not seen.request_seen(request):
                queue.push(request)
    return (used(server) - before) / pending


def main():
    pending = parser_of(__doc__, pending=100_000).parse_args().pending
    sample = page(12345, 1000)
    print(described())
    print(f"requests such as {sample.url} with a Referer and a depth, {pending:,} pending:")
    with redis_server() as server:
        rows = [
            [f"scrapy-bloom, {slots:,} slots", *(f"{n:.1f}" for n in fill(server, pending, slots))]
            for slots in (1, 1000, 6000, 20_000, pending)
        ]
        rows.append(["scrapy-redis", f"{fill_scrapy_redis(server, pending):.1f}", "with its set"])
    table(["", "bytes a request", "of the filter"], rows)


if __name__ == "__main__":
    main()
