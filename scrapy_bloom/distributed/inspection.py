"""What a crawl in Redis has pending, in flight and failed, and how to remove it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..shared.client import Script

if TYPE_CHECKING:
    from ..shared.client import RedisClient

_SLOTS_AT_ONCE = 1000
_REMOVED_AT_ONCE = 100

# KEYS: the filter's header. Returns what there is to know but for what is pending.
_LOOK = Script("""
local function key(name) return KEYS[1] .. ':' .. name end
local time = redis.call('TIME')
local workers = {}
for _, each in ipairs(redis.call('ZRANGE', key('workers'), 0, -1)) do
  workers[#workers + 1] = {each, redis.call('ZSCORE', key('workers'), each),
    redis.call('HLEN', key('claims:' .. each)), redis.call('SCARD', key('handed:' .. each)),
    redis.call('SISMEMBER', key('starting'), each)}
end
local failed, records = {}, redis.call('HGETALL', key('failed'))
for at = 1, math.min(#records, 200), 2 do
  local record = cmsgpack.unpack(records[at + 1])
  failed[#failed + 1] = {records[at], record[2], record[3], record[4], record[5], record[6]}
end
return {redis.call('HMGET', key('crawl'), 'lease', 'round', 'start_done', 'over', 'done', 'began'),
  tostring(time[1] * 1000), workers, failed, #records / 2, redis.call('LLEN', key('alone')),
  redis.call('ZRANGE', key('priorities'), 0, -1)}
""")

# KEYS: the filter's header. ARGV: priority, first slot, last slot.
_COUNT = Script("""
local counts = {}
for _, slot in ipairs(redis.call('LRANGE', KEYS[1] .. ':slots:' .. ARGV[1], ARGV[2], ARGV[3])) do
  counts[#counts + 1] = slot
  counts[#counts + 1] = redis.call('LLEN', KEYS[1] .. ':pending:' .. ARGV[1] .. ':' .. slot)
end
return counts
""")

# KEYS: the filter's header. ARGV: how many lists of requests to remove at most. The state
# goes first: workers notice. Returns how many keys are gone.
_REMOVE = Script("""
local function key(name) return KEYS[1] .. ':' .. name end
local gone = redis.call('DEL', key('crawl'))
for _, priority in ipairs(redis.call('ZRANGE', key('priorities'), 0, -1)) do
  local ring = key('slots:' .. priority)
  for _, slot in ipairs(redis.call('LRANGE', ring, 0, ARGV[1] - 1)) do
    gone = gone + redis.call('UNLINK', key('pending:' .. priority .. ':' .. slot))
  end
  redis.call('LTRIM', ring, ARGV[1], -1)
  if redis.call('EXISTS', ring) == 1 then return gone end
  redis.call('ZREM', key('priorities'), priority)
end
for _, each in ipairs(redis.call('ZRANGE', key('workers'), 0, -1)) do
  gone = gone + redis.call('UNLINK', key('batch:' .. each), key('claims:' .. each),
    key('handed:' .. each))
end
return gone + redis.call('UNLINK', key('workers'), key('starting'), key('alone'), key('failed'),
  key('start'), key('owners'), key('progress'))
""")


@dataclass(frozen=True)
class WorkerView:
    """One worker: how long its lease lasts yet, in seconds, below 0 where it has run out; how
    many requests it has claimed, and how many of them the engine may have got."""

    name: str
    lease_left: float
    claimed: int
    handed: int
    in_start: bool


@dataclass(frozen=True)
class FailedRequest:
    """A request that was set aside, and why."""

    claim: str
    slot: str
    reason: str
    attempts: int
    worker: str


@dataclass(frozen=True)
class QueueView:
    """What a crawl has that is not done. `pending` counts by Scrapy's priority, then slot."""

    round: str
    start_done: bool
    over: bool
    lease: float
    done: int
    seconds: float
    workers: Sequence[WorkerView]
    failed: Sequence[FailedRequest]
    failed_count: int
    alone: int
    pending: dict[int, dict[str, int]] = field(default_factory=dict)

    @property
    def pending_count(self) -> int:
        """How many requests wait, those to be handed out alone included."""
        return self.alone + sum(sum(counts.values()) for counts in self.pending.values())

    @property
    def in_flight(self) -> int:
        """How many requests workers have claimed."""
        return sum(worker.claimed for worker in self.workers)


def look_at(client: RedisClient, key: str) -> QueueView | None:
    """Return what the crawl beside the filter at `key` has, None if there is none. Cost: a
    round trip, and one for a thousand slots."""
    crawl, now, workers, failed, failed_count, alone, priorities = client.run(_LOOK, [key])
    if crawl[0] is None:
        return None
    lease, round_, start_done, over, done, began = crawl
    pending: dict[int, Counter[str]] = {}
    for priority in priorities:
        # two for each of Scrapy's: others, start requests
        counts = pending.setdefault(-(int(priority) // 2), Counter())
        counts.update(dict(_slots(client, key, priority.decode())))
    return QueueView(
        round=round_.decode(),
        start_done=start_done == b"1",
        over=over == b"1",
        lease=int(lease) / 1000,
        done=int(done or 0),
        seconds=(int(now) - int(began)) / 1000,
        workers=[
            WorkerView(
                name.decode(), (float(until) - int(now)) / 1000, claimed, handed, bool(in_start)
            )
            for name, until, claimed, handed, in_start in workers
        ],
        failed=[
            FailedRequest(claim.decode(), slot.decode(), reason.decode(), attempts, worker.decode())
            for claim, slot, _, reason, attempts, worker in failed
        ],
        failed_count=failed_count,
        alone=alone,
        pending={priority: dict(counts) for priority, counts in pending.items()},
    )


def remove_queue(client: RedisClient, key: str) -> int:
    """Remove the crawl beside the filter at `key`; return how many keys are gone."""
    removed = 0
    while gone := client.run(_REMOVE, [key], _REMOVED_AT_ONCE):
        removed += gone
    return removed


def _slots(client: RedisClient, key: str, priority: str) -> Iterator[tuple[str, int]]:
    first = 0
    while found := client.run(_COUNT, [key], priority, first, first + _SLOTS_AT_ONCE - 1):
        for slot, count in zip(found[::2], found[1::2], strict=True):
            if count:
                yield slot.decode(), count
        first += _SLOTS_AT_ONCE
