"""How long workers that come upon dead hosts keep Redis busy: `python
benchmarks/bench_redis_stalls.py`.

On a server that this starts: one dead host of a hundred thousand requests, then 5,000 dead hosts
with as many. Then all that workers and commands do with them, and the longest call of each by the
server's SLOWLOG; more than 20 ms is a failure.
"""

import sys
from functools import partial

from sidebyside import parser_of, redis_server, table

from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.delays import DEAD
from scrapy_bloom.crawl.records import KEPT
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.lifecycle import remove_queue
from scrapy_bloom.redis.status import CrawlReader
from tests.failures import Failed
from tests.redis.server import described
from tests.redis.workers import StoreWorker

KEY = "{bench}"
LIMIT = 20
AT_ONCE = 10_000

# KEYS: the filter's header. ARGV: the first and last request, and how many slots there are.
FILL = """
local first, last, many = unpack(ARGV)
local function key(name) return KEYS[1] .. ':' .. name end
for number = first, last do
  local slot = 'shop-' .. number % many .. '.example.com'
  if number < tonumber(many) then redis.call('LPUSH', key('slots:0'), slot) end
  redis.call('RPUSH', key('pending:0:' .. slot), '00')
end
redis.call('ZADD', key('priorities'), 0, 0)
redis.call('HINCRBY', key('crawl'), 'waiting', last - first + 1)
"""


def dead_hosts(server, join, slots, requests):
    """Yield what workers and commands do, and how long its longest call is, in a crawl with so many
    requests of so many slots, each of which has a dead host."""
    worker = join(capacity=16)
    with server.client() as client:
        for at in range(0, requests, AT_ONCE):
            client.eval(FILL, 1, KEY, at, at + AT_ONCE - 1, slots)

    def find():
        worker.store._leaving = True  # it claims nothing
        for slot in range(slots):
            worker.store.hold(f"shop-{slot}.example.com", 3600, DEAD)
            if slot % 50 == 49:
                worker.exchange()
        worker.store._leaving = False

    def meet():
        while not worker.store.is_still:
            worker.exchange()

    desk, retried = RedisDesk(worker.client, KEY), Filter(KEPT, reasons=["host"])
    for name, function in {
        "workers find them dead": find,
        "a worker comes upon their requests": meet,
        "scrapy bloom workers": CrawlReader(worker.client, KEY).look,
        "scrapy bloom failed": lambda: Failed(desk).requests(),
        "scrapy bloom retry --reason host": lambda: desk.change(retried, "retry"),
    }.items():
        yield [f"{slots:,} dead: {name}", longest(server, function)]
    worker.leave()
    remove_queue(RedisClient(server.url), KEY)


def longest(server, function):
    """Return the milliseconds of the longest call of what `function` does."""
    server.command("SLOWLOG", "RESET")
    function()
    with server.client() as client:
        calls = client.slowlog_get(1_000_000)
    # a script is logged, and so is what it calls
    times = [each["duration"] for each in calls if each["command"][:7] != b"SLOWLOG"]
    return max(times, default=1000) / 1000


def main():
    options = parser_of(__doc__, slots=5_000, requests=100_000).parse_args()
    print(described())
    with redis_server() as server:
        server.command("CONFIG", "SET", "slowlog-log-slower-than", 1000)
        server.command("CONFIG", "SET", "slowlog-max-len", 1_000_000)
        shared = {"BLOOM_CAPACITY": 100_000, "BLOOM_REDIS_LEASE": 3600}
        join = partial(StoreWorker, server.url, "bench", **shared)
        rows = [*dead_hosts(server, join, 1, options.requests)]
        rows += dead_hosts(server, join, options.slots, options.requests)
    table(["longest call", "ms"], [[name, f"{took:.1f}"] for name, took in rows])
    return max(took for _, took in rows) > LIMIT


if __name__ == "__main__":
    sys.exit(main())
