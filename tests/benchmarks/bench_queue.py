"""What `scrapy bloom queue count` and `drop` take beside a million pending requests.

    python tests/benchmarks/bench_queue.py [--requests N] [--seconds N]

In a job this process counts; of a crawl in Redis the server's CPU counts, as INFO has it. The
requests are in 40 slots, in 20,000, and in one slot each, which in Redis share a list. Of drops in
Redis it prints the server's time of the longest call, by its SLOWLOG; and how four workers fare
beside one that looks at all requests, against the same workers without it.
"""

import multiprocessing
import tempfile
import time
from functools import partial
from pathlib import Path

from sidebyside import parser_of, redis_server, server_seconds

# isort: split
from scrapy import Request

from scrapy_bloom.job.choice import Filter
from scrapy_bloom.job.codec import Codec
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.redis_backend.client import RedisClient
from scrapy_bloom.redis_backend.desk import RedisDesk
from scrapy_bloom.sqlite_backend.desk import SqliteDesk
from tests.redis_backend.server import described
from tests.redis_backend.workers import StoreWorker
from tests.stored import stored as filled

AT_ONCE = 10_000
COUNTS = {
    "count": (Filter(), "slot"),
    "count --by slot --slot GLOB": (Filter(slots=["*7.example"]), "slot"),
    "count --by priority": (Filter(), "priority"),
    "count --url GLOB": (Filter(urls=["*/page-7*"]), "slot"),
}

# KEYS: the filter's header. ARGV: first, last, slots, whether they share the lobby; a payload.
FILL = """
local function key(name) return KEYS[1] .. ':' .. name end
for number = ARGV[1], ARGV[2] do
  local slot = 'shop-' .. number % ARGV[3] .. '.example'
  if ARGV[4] == '1' then
    redis.call('RPUSH', key('lobby:0'), slot .. '\\0' .. '0' .. ARGV[5])
  else
    if number < tonumber(ARGV[3]) then redis.call('LPUSH', key('slots:0'), slot) end
    redis.call('RPUSH', key('pending:0:' .. slot), '0' .. ARGV[5])
  end
end
redis.call('ZADD', key('priorities'), 0, 0)
"""


def stored():
    """Return a request as it is stored in a slot, without a dictionary."""
    codec = Codec(None, 10**6)
    request = Request("http://shop-0.example/list/page-123.html", meta={"depth": 3})
    return codec.dump(codec.fields(request), "shop-0.example", "pickle").payload


def report(desk, seconds, slots):
    """Print what each count takes."""
    for name, (chosen, by) in COUNTS.items():
        before, began = seconds(), time.perf_counter()
        found = desk.count(chosen, by)
        total = found.by.total() + found.unknown
        taken, wall = seconds() - before, time.perf_counter() - began
        print(f"  {slots:>9,} slots  {name:<28} {taken:6.2f} s  ({wall:5.2f} s in all)  {total:,}")


def in_a_job(count, slots):
    """Count in a job, by this process's CPU."""
    payload = stored()
    with tempfile.TemporaryDirectory() as folder:
        with filled(JobDirectory(Path(folder)).requests) as job:
            for number in range(count):
                job.put(payload, f"shop-{number % slots}.example")
                if number % AT_ONCE == 0:
                    job.file.commit()
        report(SqliteDesk(Path(folder)), time.process_time, slots)


def in_redis(server, count, slots):
    """Count in a crawl, by the server's CPU."""
    worker = StoreWorker(server.url, f"bench{slots}", BLOOM_REDIS_LEASE=3600)
    with server.client(decode_responses=False) as client:
        fill(worker, client, count, slots)
        desk = RedisDesk(worker.client, worker.key)
        report(desk, partial(server_seconds, client), slots)
        client.flushall()
    worker.close()


def fill(worker, client, count, slots):
    """Make so many requests pending."""
    for first in range(0, count, AT_ONCE):
        last, shares = min(first + AT_ONCE, count) - 1, int(slots == count)
        client.eval(FILL, 1, worker.key, first, last, slots, shares, stored())
    client.hincrby(f"{worker.key}:crawl", "waiting", count)


def drop_lists(server, count, slots):
    """Drop slots that have a list of their own: 40 of them, or all."""
    worker = StoreWorker(server.url, f"lists{slots}", BLOOM_REDIS_LEASE=3600)
    with server.client(decode_responses=False) as client:
        fill(worker, client, count, slots)
        client.config_set("slowlog-log-slower-than", 0)
        client.config_set("slowlog-max-len", 1_000_000)
        client.slowlog_reset()
        desk = RedisDesk(worker.client, worker.key)
        dropped = desk.change(Filter(slots=["shop-1?.example"]), "drop").states.total()
        calls = [each["duration"] for each in client.slowlog_get(100_000)]
        client.config_set("slowlog-log-slower-than", 10_000)
        client.flushall()
    print(
        f"  {slots:>9,} slots  drop --slot: {dropped:,} in lists of {count // slots:,};"
        f" the longest call {max(calls) / 1000:.2f} ms"
    )
    worker.close()


def work(url, key, seconds, answers):
    """Claim and acknowledge for so long; tell how many, and how long each call took."""
    worker = StoreWorker(url, key, capacity=16, BLOOM_REDIS_LEASE=3600)
    until, calls, done = time.perf_counter() + seconds, [], 0
    while (began := time.perf_counter()) < until:
        worker.exchange()
        calls.append(time.perf_counter() - began)
        while (request := worker.store.next()) is not None:
            worker.store.done(request)
            done += 1
        time.sleep(0.005)
    worker.close()
    answers.put((done, calls))


def drop_beside_workers(server, count, seconds):
    """Print how four workers fare beside a look at all requests, and alone before and after."""
    worker = StoreWorker(server.url, "drops", BLOOM_REDIS_LEASE=3600)
    key = worker.key
    with server.client(decode_responses=False) as client:
        fill(worker, client, count, 40)
    found = []
    for drops in (False, True, False):
        answers = multiprocessing.Queue()
        arguments = (server.url, "drops", seconds, answers)
        workers = [multiprocessing.Process(target=work, args=arguments) for _ in range(4)]
        for each in workers:
            each.start()
        tool = multiprocessing.Process(target=drop_all, args=(server.url, key))
        if drops:
            tool.start()
        told = [answers.get() for _ in workers]
        for each in workers:
            each.join()
        if drops:
            tool.terminate()
            tool.join()
        calls = sorted(call for _, each in told for call in each)
        found.append((sum(done for done, _ in told) / seconds, calls[int(0.99 * len(calls))]))
    alone = [sum(each) / 2 for each in zip(found[0], found[2], strict=True)]
    print(
        f"  four workers beside drop --url: {found[1][0] / alone[0]:.2f} times their rate alone"
        f" ({alone[0]:,.0f} requests a second), p99 of their calls {found[1][1] / alone[1]:.2f}"
        f" times ({1000 * alone[1]:.1f} ms)"
    )
    worker.close()


def drop_all(url, key):
    """Drop by a URL that few requests have, again and again."""
    client = RedisClient(url, 10)
    desk = RedisDesk(client, key)
    while True:
        desk.change(Filter(urls=["*/none-*"]), "drop")


def main():
    options = parser_of(__doc__, requests=1e6, seconds=20.0).parse_args()
    count = int(options.requests)
    print(f"a job, {count:,} requests; CPU of the command")
    for slots in (40, 20_000, count):
        in_a_job(count, slots)
    with redis_server() as server:
        print(f"a crawl in Redis ({described()}); CPU of the server")
        for slots in (40, 20_000, count):
            in_redis(server, count, slots)
        for slots in (40, 20_000):
            drop_lists(server, count, slots)
        drop_beside_workers(server, count, options.seconds)


if __name__ == "__main__":
    main()
