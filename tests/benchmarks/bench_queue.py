"""What `scrapy bloom queue count` takes of a core beside a million pending requests.

    python tests/benchmarks/bench_queue.py [--requests N]

In a job this process counts; of a crawl in Redis the server's CPU counts, as INFO has it. The
requests are in 40 slots, in 20,000, and in one slot each, which in Redis share a list.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from scrapy import Request

from scrapy_bloom.job.codec import Codec
from scrapy_bloom.job.pending import Selection
from scrapy_bloom.jobdir import JobDirectory
from scrapy_bloom.redis_backend.pending_store import RedisPendingStore
from scrapy_bloom.sqlite_backend.pending_store import SQLitePendingStore
from scrapy_bloom.sqlite_backend.request_file import RequestFile
from tests.redis_backend.server import Server, described
from tests.redis_backend.workers import StoreWorker

AT_ONCE = 10_000
COUNTS = {
    "count": ((), "slot"),
    "count --by slot --slot GLOB": ((["*7.example"],), "slot"),
    "count --by priority": ((), "priority"),
    "count --url GLOB": (((), ["*/page-7*"]), "slot"),
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


def report(store, seconds, slots):
    """Print what each count takes."""
    for name, (selected, by) in COUNTS.items():
        before, began = seconds(), time.perf_counter()
        found = store.count(Selection(*selected), by)
        taken, wall = seconds() - before, time.perf_counter() - began
        total = found.pending.total() + found.unknown
        print(f"  {slots:>9,} slots  {name:<28} {taken:6.2f} s  ({wall:5.2f} s in all)  {total:,}")


def in_a_job(count, slots):
    """Count in a job, by this process's CPU."""
    payload = stored()
    with tempfile.TemporaryDirectory() as folder:
        file = RequestFile.open(JobDirectory(Path(folder)).requests)
        for number in range(count):
            file.push((f"shop-{number % slots}.example", 0, 0), payload)
            if number % AT_ONCE == 0:
                file.commit()
        file.commit()
        report(SQLitePendingStore(Path(folder), pickles=True), time.process_time, slots)
        file.close(clean=True)


def in_redis(server, count, slots):
    """Count in a crawl, by the server's CPU."""
    payload = stored()
    worker = StoreWorker(server.url, f"bench{slots}", BLOOM_REDIS_LEASE=3600)
    with server.client(decode_responses=False) as client:
        for first in range(0, count, AT_ONCE):
            last, shares = min(first + AT_ONCE, count) - 1, int(slots == count)
            client.eval(FILL, 1, worker.key, first, last, slots, shares, payload)

        def seconds():
            info = client.info("cpu")
            return info["used_cpu_user"] + info["used_cpu_sys"]

        report(RedisPendingStore(worker.client, worker.key, pickles=True), seconds, slots)
        client.flushall()
    worker.close()


def main():
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=float, default=1e6)
    count = int(parser.parse_args().requests)
    print(f"a job, {count:,} requests; CPU of the command")
    for slots in (40, 20_000, count):
        in_a_job(count, slots)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            print(f"a crawl in Redis ({described()}); CPU of the server")
            for slots in (40, 20_000, count):
                in_redis(server, count, slots)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
