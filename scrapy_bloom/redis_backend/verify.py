"""Whether the queue of a crawl in Redis is whole."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..bloom.inspection import Finding
from ..reporting import counted
from .client import SlotScript
from .crawl_scripts import crawl_id
from .lifecycle import stored_header
from .status import look_at

if TYPE_CHECKING:
    from .client import RedisClient

_AT_ONCE = 500
_KEYS_AT_ONCE = 1000
_ODD = "surrogateescape"

_KEY = "local function key(name) return KEYS[1] .. ':' .. name end\n"

# KEYS: the filter's header. ARGV: cursor. Returns the next one, and some names of keys of the
# crawl, without what they begin with. In a script, so that a Cluster's right node is asked.
_NAMES = SlotScript(
    _KEY
    + """
local pattern = KEYS[1]:gsub('[%*%?%[%]%^%-\\\\]', '\\\\%0') .. ':*'
local found = redis.call('SCAN', ARGV[1], 'MATCH', pattern, 'COUNT', """
    + str(_KEYS_AT_ONCE)
    + """)
local names = {}
for _, name in ipairs(found[2]) do names[#names + 1] = name:sub(#KEYS[1] + 2) end
return {found[1], names}
"""
)

# KEYS: the filter's header. ARGV: priority, slot. Returns whether requests wait in a list that
# no worker finds.
_IS_LOST = SlotScript(
    _KEY
    + """
if redis.call('EXISTS', key('pending:' .. ARGV[1] .. ':' .. ARGV[2])) == 0 then return 0 end
if redis.call('ZSCORE', key('priorities'), ARGV[1]) then
  for _, slot in ipairs(redis.call('LRANGE', key('slots:' .. ARGV[1]), 0, -1)) do
    if slot == ARGV[2] then return 0 end
  end
end
return 1
"""
)

# KEYS: the filter's header. ARGV: a list's name, first, last. Returns how many entries there
# are, and how many of them are none.
_BAD_ENTRIES = SlotScript(
    _KEY
    + """
local entries, bad = redis.call('LRANGE', key(ARGV[1]), ARGV[2], ARGV[3]), 0
for _, entry in ipairs(entries) do
  if not entry:find('^%d.') then bad = bad + 1 end
end
return {#entries, bad}
"""
)

# KEYS: the filter's header. ARGV: a hash's name, cursor, least parts. Returns the next cursor,
# how many records there are, and how many of them are none.
_BAD_RECORDS = SlotScript(
    _KEY
    + """
local found, bad = redis.call('HSCAN', key(ARGV[1]), ARGV[2], 'COUNT', 100), 0
for at = 2, #found[2], 2 do
  local is_packed, record = pcall(cmsgpack.unpack, found[2][at])
  if not is_packed or type(record) ~= 'table' or type(record[3]) ~= 'string'
      or #record < tonumber(ARGV[3]) or not record[3]:find('^%d.') then
    bad = bad + 1
  end
end
return {found[1], #found[2] / 2, bad}
"""
)

# KEYS: the filter's header. ARGV: worker. Returns whether its claims are nobody's.
_IS_ORPHAN = SlotScript(
    _KEY
    + """
if redis.call('ZSCORE', key('workers'), ARGV[1]) then return 0 end
return redis.call('HLEN', key('claims:' .. ARGV[1]))
"""
)

# KEYS: the filter's header. Returns what is wrong with the books as they are at this moment.
_BOOKS = SlotScript(
    _KEY
    + """
local crawl = redis.call('HMGET', key('crawl'), 'id', 'over')
local strangers, claims = 0, 0
for _, name in ipairs({'starting', 'busy'}) do
  for _, each in ipairs(redis.call('SMEMBERS', key(name))) do
    local has_claims = redis.call('EXISTS', key('claims:' .. each)) == 1
    if not (has_claims or redis.call('ZSCORE', key('workers'), each)) then
      strangers = strangers + 1
    end
  end
end
for _, each in ipairs(redis.call('ZRANGE', key('workers'), 0, -1)) do
  claims = claims + redis.call('HLEN', key('claims:' .. each))
end
local waits = redis.call('EXISTS', key('alone'))
for _, priority in ipairs(redis.call('ZRANGE', key('priorities'), 0, -1)) do
  if waits > 0 then break end
  for _, slot in ipairs(redis.call('LRANGE', key('slots:' .. priority), 0, 99)) do
    waits = waits + redis.call('EXISTS', key('pending:' .. priority .. ':' .. slot))
  end
end
return {crawl[1], crawl[2] == '1' and 1 or 0, strangers, claims, waits}
"""
)


def queue_findings(client: RedisClient, key: str) -> Iterator[Finding]:
    """Yield what is wrong with the crawl beside the filter at `key`, or that it is whole;
    nothing without a crawl. Reads everything, in calls for some hundreds of requests, while
    workers go on. Raises SharedFilterError."""
    crawl = look_at(client, key)
    if crawl is None:
        return
    name = f"{client.name} {key}:crawl"
    names = sorted(set(_names(client, key)))
    waiting, bad = _count_waiting(client, key, names)
    wrong = [*bad, *_wrong_claims(client, key, names), *_wrong_books(client, key)]
    failed, bad_records = _records(client, key, "failed", 6)
    if bad_records:
        wrong.append(f"{counted(bad_records, 'failed request')} cannot be read")
    if not crawl.living and waiting < crawl.waiting:
        missing = counted(crawl.waiting - waiting, "request")
        wrong.append(f"{waiting:,} requests wait, and {crawl.waiting:,} should: {missing} is gone")
    yield from (Finding(name, sound=False, text=text) for text in wrong)
    if not wrong:
        text = (
            f"each of {counted(waiting, 'waiting request')} is where workers find it, each of"
            f" {counted(crawl.in_flight, 'claimed one')} has a worker"
            f"{_of_the_dead(len(crawl.workers) - len(crawl.living))},"
            f" {counted(failed, 'failed one')} can be read"
        )
        yield Finding(name, sound=True, text=text)


def _of_the_dead(count: int) -> str:
    if not count:
        return ""
    return f" ({counted(count, 'worker')} is dead: what it has comes back with the next call)"


def _names(client: RedisClient, key: str) -> Iterator[str]:
    cursor = b"0"
    while True:
        cursor, names = client.run(_NAMES, [key], cursor)
        yield from (name.decode(errors=_ODD) for name in names)
        if int(cursor) == 0:
            return


def _count_waiting(client: RedisClient, key: str, names: list[str]) -> tuple[int, list[str]]:
    """Return how many requests wait, and what is wrong with them."""
    waiting, wrong = client.call("llen", f"{key}:alone"), []
    found = set(_in_rings(client, key))
    for name in names:
        kind, _, place = name.partition(":")
        if kind != "pending":
            continue
        priority, _, slot = place.partition(":")
        first = bad = 0
        while True:
            count, more = client.run(_BAD_ENTRIES, [key], name, first, first + _AT_ONCE - 1)
            first, bad = first + count, bad + more
            if count < _AT_ONCE:
                break
        waiting += first
        if bad:
            wrong.append(f"{counted(bad, 'request')} of {name!r} cannot be read")
        # a ring turns while it is read, and to read all of it at once takes long
        if (priority, slot) not in found and client.run(_IS_LOST, [key], priority, slot):
            wrong.append(
                f"{counted(first, 'request')} of {name!r}: no worker finds that list, since its"
                f" slot is not in 'slots:{priority}', or its priority not in 'priorities'"
            )
    return waiting, wrong


def _in_rings(client: RedisClient, key: str) -> Iterator[tuple[str, str]]:
    """Yield the priority and slot of lists that workers find."""
    for priority in client.call("zrange", f"{key}:priorities", 0, -1):
        ring, first = f"{key}:slots:{priority.decode()}", 0
        while slots := client.call("lrange", ring, first, first + _KEYS_AT_ONCE - 1):
            yield from ((priority.decode(), each.decode(errors=_ODD)) for each in slots)
            first += _KEYS_AT_ONCE


def _wrong_claims(client: RedisClient, key: str, names: list[str]) -> Iterator[str]:
    for name in names:
        kind, _, worker = name.partition(":")
        if kind != "claims":
            continue
        if count := client.run(_IS_ORPHAN, [key], worker):
            yield (
                f"{counted(count, 'claim')} of {worker}, which is none of the workers: they never"
                " come back"
            )
        _, bad = _records(client, key, name, 3)
        if bad:
            yield f"{counted(bad, 'claim')} of {worker} cannot be read"


def _wrong_books(client: RedisClient, key: str) -> Iterator[str]:
    crawl, over, strangers, claims, waits = client.run(_BOOKS, [key])
    header = stored_header(client, key)
    if header is None or crawl.decode() not in {header.generation, crawl_id(header.generation)}:
        yield "the queue belongs to a filter that is gone: remove both with 'scrapy bloom clear'"
    if strangers:
        yield f"{counted(strangers, 'worker')} at work without a lease: the crawl has no end"
    if over and (claims or waits):
        yield "the crawl is over, but something waits or is claimed"


def _records(client: RedisClient, key: str, name: str, parts: int) -> tuple[int, int]:
    """Return how many records a hash has, and how many of them cannot be read."""
    cursor, records, bad = b"0", 0, 0
    while True:
        cursor, count, more = client.run(_BAD_RECORDS, [key], name, cursor, parts)
        records, bad = records + count, bad + more
        if int(cursor) == 0:
            return records, bad
