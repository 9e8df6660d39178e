"""How long a crawl in Redis keeps its server busy: `bench_redis_stalls.py`.

On a server that this starts: a million requests that wait in 20,000 slots, as many start requests
that were taken, a thousand workers, a hundred thousand requests that have failed, and a dead
worker with a hundred thousand claims. Then all that workers and commands do with it, and the
longest call of each by the server's SLOWLOG.
"""

import sys

from sidebyside import parser_of, redis_server

# isort: split
from scrapy import Request
from scrapy.settings import Settings
from scrapy.utils.request import RequestFingerprinter

from scrapy_bloom.commands.crawls import queue_in
from scrapy_bloom.redis_backend.desk import RedisDesk
from scrapy_bloom.redis_backend.lifecycle import remove_queue
from scrapy_bloom.redis_backend.push import push
from scrapy_bloom.redis_backend.status import CrawlReader, CrawlStatus
from scrapy_bloom.redis_backend.verify import queue_findings
from tests.failures import Failed
from tests.redis_backend.server import described
from tests.redis_backend.workers import StoreWorker

LIMIT = 0.020
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
  elseif kind == 'start' then
    redis.call('SADD', key('start'), redis.sha1hex(number))
  end
end
if kind == 'pending' then
  redis.call('ZADD', key('priorities'), 0, 0)
  redis.call('HINCRBY', key('crawl'), 'waiting', last - first + 1)
end
if kind == 'claims' then redis.call('HSET', key('crawl'), 'claims', last) end
"""


class Stalls:
    """The crawl, and what it costs the server."""

    def __init__(self, server, options):
        self.server, self.options = server, options
        self.key, self.longest = "{bench}", 0.0
        server.command("CONFIG", "SET", "slowlog-log-slower-than", 1000)
        server.command("CONFIG", "SET", "slowlog-max-len", 1_000_000)
        self.worker = self.join()
        self.worker.enqueue("page")
        self.worker.exchange()
        (payload,) = (claim.payload for claim in self.worker.store.claims.all.values())
        with server.client(decode_responses=False) as client:
            for kind, first, count, many in (
                ("pending", 0, options.pending, options.slots),
                ("failed", 1_000, options.failed, options.slots),
                ("claims", 1_000_000, 4 * options.workers, options.workers),
                ("claims", 2_000_000, options.claims, 1),
                ("start", 0, options.pending, 1),
            ):
                for at in range(first, first + count, AT_ONCE):
                    last = min(at + AT_ONCE, first + count) - 1
                    client.eval(FILL, 1, self.key, kind, at, last, many, payload)

    def join(self, **settings):
        return StoreWorker(
            self.server.url, "bench", BLOOM_CAPACITY=100_000, BLOOM_REDIS_LEASE=3600, **settings
        )

    def time(self, name, function):
        """Print the longest call of what `function` does."""
        self.server.command("SLOWLOG", "RESET")
        function()
        with self.server.client() as client:
            calls = client.slowlog_get(1_000_000)
        # a script is logged, and so is what it calls
        times = [each["duration"] / 1e6 for each in calls if each["command"][:7] != b"SLOWLOG"]
        longest = max(times, default=0.001)
        self.longest = max(self.longest, longest)
        print(f"  {name:<44} {1000 * longest:7.1f} ms", flush=True)

    def run(self):
        """Do what workers and commands do."""
        worker, client = self.worker, self.worker.client
        other = self.join(capacity=1000)
        pushing = {"settings": Settings(), "fingerprinter": RequestFingerprinter()}

        def work():
            for number in range(2000):
                worker.enqueue(f"{number}", meta={"download_slot": f"new-{number}"})
                while (request := worker.store.next()) is not None:
                    worker.store.done(request)
                if number % 50 == 0:
                    worker.exchange()

        self.time("a worker joins", self.join)
        self.time("a worker pushes, claims, acknowledges", work)
        self.time("a worker that wants a thousand", lambda: [other.exchange() for _ in range(9)])
        self.time(
            "scrapy bloom push",
            lambda: push(
                client,
                self.key,
                [Request(f"http://example.com/pushed/{number}") for number in range(1000)],
                **pushing,
            ),
        )
        self.time("scrapy bloom workers", lambda: CrawlReader(client, self.key).look())
        self.time("scrapy bloom info", lambda: queue_in(client, self.key))
        self.time("scrapy bloom top", lambda: CrawlStatus(client, self.key).figures())
        self.time("scrapy bloom failed", lambda: Failed(RedisDesk(client, self.key)).requests())
        self.time("scrapy bloom verify", lambda: [*queue_findings(client, self.key)])
        self.time("scrapy bloom retry", lambda: Failed(RedisDesk(client, self.key)).retry())
        self.server.command("ZADD", f"{self.key}:workers", 1, "worker0")
        self.time("a dead worker with many claims", self.bury)
        self.time("a worker leaves", lambda: other.leave())
        self.server.command("HSET", f"{self.key}:crawl", "over", 1)
        self.time("a new round", lambda: self.join(BLOOM_REDIS_ROUND="next"))
        self.time("scrapy bloom clear", lambda: remove_queue(client, self.key))
        self.idle()

    def bury(self):
        """Call until a dead worker is not there any more."""
        while self.server.command("ZSCORE", f"{self.key}:workers", "worker0"):
            self.worker.exchange()

    def idle(self):
        """Call with nothing left, and a thousand workers that wait."""
        worker = self.join()
        now = int(self.server.command("TIME")[0]) * 1000
        for number in range(self.options.workers):
            self.server.command("ZADD", f"{self.key}:workers", now + 3_600_000, f"idle{number}")
        worker.exchange()
        self.time(
            "a worker that waits with a thousand others",
            lambda: [worker.exchange() for _ in range(100)],
        )


def main():
    options = parser_of(
        __doc__, pending=1_000_000, slots=20_000, workers=1_000, failed=100_000, claims=100_000
    ).parse_args()
    print(described())
    with redis_server() as server:
        stalls = Stalls(server, options)
        stalls.run()
    return stalls.longest > LIMIT


if __name__ == "__main__":
    sys.exit(main())
