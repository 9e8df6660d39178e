"""How long a crawl in Redis keeps its server busy: `python benchmarks/bench_redis_stalls.py`.

On a server that this starts: a million requests that wait in 20,000 slots, a thousand workers, a
hundred thousand requests that have failed, and a dead worker with a hundred thousand claims. Then
all that workers and commands do with it, and the longest call of each by the server's SLOWLOG; more
than 20 ms is a failure. Before that the same with one dead host of a hundred thousand requests, and
with 5,000 dead hosts.
"""

import sys
from functools import partial

from scrapy import Request
from scrapy.settings import Settings
from scrapy.utils.request import RequestFingerprinter
from sidebyside import parser_of, redis_server, table

from scrapy_bloom.commands.crawls import queue_in
from scrapy_bloom.crawl.choice import Filter
from scrapy_bloom.crawl.delays import DEAD
from scrapy_bloom.crawl.records import KEPT
from scrapy_bloom.redis.client import RedisClient
from scrapy_bloom.redis.desk import RedisDesk
from scrapy_bloom.redis.lifecycle import remove_queue
from scrapy_bloom.redis.push import push
from scrapy_bloom.redis.status import CrawlReader, CrawlStatus
from scrapy_bloom.redis.verify import queue_findings
from tests.failures import Failed
from tests.redis.server import described
from tests.redis.workers import StoreWorker

KEY = "{bench}"
LIMIT = 20
AT_ONCE = 10_000

# KEYS: the filter's header. ARGV: what to make, first, last, and how many slots or workers there
# are; what a request is stored as.
FILL = """
local kind, first, last, many, payload = unpack(ARGV)
local function key(name) return KEYS[1] .. ':' .. name end
local now = redis.call('TIME')[1] * 1000
for number = first, last do
  local slot = 'shop-' .. number % many .. '.example.com'
  if kind == 'pending' then
    if number < tonumber(many) then redis.call('LPUSH', key('slots:0'), slot) end
    redis.call('RPUSH', key('pending:0:' .. slot), '0' .. payload)
  elseif kind == 'failed' then
    redis.call('HSET', key('failed'), number, cmsgpack.pack({'0', slot, '0' .. payload, 'http',
      3, 'worker', now, '{"url": "http://example.com/", "method": "GET", "status": 503}'}))
  elseif kind == 'claims' then
    local worker = 'worker' .. number % many
    redis.call('ZADD', key('workers'), now + 3600000, worker)
    redis.call('SADD', key('busy'), worker)
    redis.call('HSET', key('claims:' .. worker), number,
      cmsgpack.pack({'0', slot, '0' .. payload, false, now}))
    redis.call('SADD', key('dispatched:' .. worker), number)
  end
end
if kind == 'pending' then
  redis.call('ZADD', key('priorities'), 0, 0)
  redis.call('HINCRBY', key('crawl'), 'waiting', last - first + 1)
end
if kind == 'claims' then redis.call('HSET', key('crawl'), 'claims', last) end
"""


def fill(server, worker, options):
    worker.enqueue("page")
    worker.exchange()
    (payload,) = (claim.payload for claim in worker.store.claims.all.values())
    with server.client() as client:
        for kind, first, count, many in (
            ("pending", 0, options.pending, options.slots),
            ("failed", 1_000, options.failed, options.slots),
            ("claims", 1_000_000, 4 * options.workers, options.workers),
            ("claims", 2_000_000, options.claims, 1),
        ):
            for at in range(first, first + count, AT_ONCE):
                last = min(at + AT_ONCE, first + count) - 1
                client.eval(FILL, 1, KEY, kind, at, last, many, payload)


def work(worker):
    """Push to slots of their own, claim, acknowledge."""
    for number in range(2000):
        worker.enqueue(f"{number}", meta={"download_slot": f"new-{number}"})
        while (request := worker.store.next()) is not None:
            worker.store.done(request)
        if number % 50 == 0:
            worker.exchange()


def bury(server, worker):
    """Call until a dead worker is not there any more."""
    server.command("ZADD", f"{KEY}:workers", 1, "worker0")
    while server.command("ZSCORE", f"{KEY}:workers", "worker0"):
        worker.exchange()


def push_many(client):
    """Push a thousand requests, as `scrapy bloom push` does."""
    requests = [Request(f"http://example.com/pushed/{number}") for number in range(1000)]
    push(client, KEY, requests, settings=Settings(), fingerprinter=RequestFingerprinter())


def wait(server, worker, workers):
    """Call with nothing left, and so many workers that wait."""
    until = int(server.command("TIME")[0]) * 1000 + 3_600_000
    for number in range(workers):
        server.command("ZADD", f"{KEY}:workers", until, f"idle{number}")
    for _ in range(101):
        worker.exchange()


def dead_hosts(server, join, slots, requests):
    """Yield what workers and commands do, and how long its longest call is, in a crawl with so many
    requests of so many slots, each of which has a dead host."""
    worker = join(capacity=16)
    with server.client() as client:
        for at in range(0, requests, AT_ONCE):
            client.eval(FILL, 1, KEY, "pending", at, at + AT_ONCE - 1, slots, "0")

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
        "a worker with nothing else": lambda: [worker.exchange() for _ in range(99)],
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
    options = parser_of(
        __doc__, pending=1_000_000, slots=20_000, workers=1_000, failed=100_000, claims=100_000
    ).parse_args()
    print(described())
    with redis_server() as server:
        server.command("CONFIG", "SET", "slowlog-log-slower-than", 1000)
        server.command("CONFIG", "SET", "slowlog-max-len", 1_000_000)
        shared = {"BLOOM_CAPACITY": 100_000, "BLOOM_REDIS_LEASE": 3600}
        join = partial(StoreWorker, server.url, "bench", **shared)
        rows = [*dead_hosts(server, join, 1, options.failed)]
        rows += dead_hosts(server, join, 5000, options.failed)
        worker = join()
        fill(server, worker, options)
        client, other = worker.client, join(capacity=1000)
        desk = RedisDesk(client, KEY)
        all_of_it = {
            "a worker joins": join,
            "a worker pushes, claims, acknowledges": lambda: work(worker),
            "a worker that wants a thousand": lambda: [other.exchange() for _ in range(9)],
            "scrapy bloom push": lambda: push_many(client),
            "scrapy bloom workers": CrawlReader(client, KEY).look,
            "scrapy bloom info": lambda: queue_in(client, KEY),
            "scrapy bloom top": lambda: CrawlStatus(client, KEY).figures(),
            "scrapy bloom failed": lambda: Failed(desk).requests(),
            "scrapy bloom verify": lambda: [*queue_findings(client, KEY)],
            "scrapy bloom retry": lambda: Failed(desk).retry(),
            "a dead worker with many claims": lambda: bury(server, worker),
            "a worker leaves": other.leave,
            "the end of a round": lambda: client.call("hset", f"{KEY}:crawl", "over", 1),
            "a new round": lambda: join(BLOOM_REDIS_ROUND="next"),
            "scrapy bloom clear": lambda: remove_queue(client, KEY),
            "a worker that waits with others": lambda: wait(server, join(), options.workers),
        }
        rows += ([name, longest(server, function)] for name, function in all_of_it.items())
    table(["longest call", "ms"], [[name, f"{took:.1f}"] for name, took in rows])
    return max(took for _, took in rows) > LIMIT


if __name__ == "__main__":
    sys.exit(main())
