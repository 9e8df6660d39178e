"""The Lua scripts of a crawl by many workers, on the keys of one hash slot.

    {KEY}                    the filter's header; {KEY}:0 … its shards
    {KEY}:crawl              hash: id (see crawl_id), spider, lease, round, start_done, over;
                             heard (ms, when a script ran last), claims (the last number),
                             done (how many were acknowledged), waiting and waiting_bytes (of
                             what is pending; too few after an aborted script; never too
                             many, so where nothing is pending they have to be 0), and what
                             workers have counted: pages, items, duplicates, retries, added
    {KEY}:progress           list: JSON of the time and the counts, one a second, of a minute
    {KEY}:workers            sorted set: worker, by the end of its lease (ms)
    {KEY}:starting           set: workers that are in start()
    {KEY}:busy               set: workers that may have claims
    {KEY}:batch:WORKER       hash: number and reply of its last call
    {KEY}:claims:WORKER      hash: claim → priority, slot, entry, losses alone or false, when (ms)
    {KEY}:handed:WORKER      set: claims that the engine may have got
    {KEY}:priorities         sorted set: priorities that may have pending requests
    {KEY}:slots:PRIORITY     list: slots that may have some, the next one last
    {KEY}:pending:PRIORITY:SLOT   list: entries, each a digit (losses) and a payload
    {KEY}:alone              list: requests that were lost with two workers
    {KEY}:failed             hash: page → priority, slot, entry, reason, attempts, worker,
                             when (ms), what the worker knows of it as JSON, and the claim;
                             where no worker has told it, claim → the same, '' for the JSON;
                             of an earlier version claim → the first six or eight
    {KEY}:start              set: marks of the start requests that were taken
    {KEY}:owners             hash: slot → who has it until when, if one worker may

A script that fails keeps what it has written, and is sent again. So a request is pushed
before its bits are set, a claim is written before its request is taken from the list,
and what is given back is pushed before the claim goes: a request may be there twice then,
and never nowhere. For the same reason a list is named in its priority's slots, and that
in the priorities, before it holds anything, and for as long as it does; and a worker is among
the busy before its first claim.
"""

from __future__ import annotations

from .client import SlotScript

FORMAT = 2
"""Of a crawl. Version 0.2.0 has no number for its own, 1."""

FENCED, GONE, DONE = b"fenced", b"gone", b"done"
"""What a reply begins with: the lease was lost, or Redis went back; this is another crawl,
or none; all went well."""


def crawl_id(generation: str) -> str:
    """Return the id of the crawl beside the filter of that generation. That of version 0.2.0,
    the generation alone, is another one: its workers are told that their crawl is gone."""
    return f"{FORMAT}:{generation}"


_CRAWL_ID = f"local function crawl_id(generation) return '{FORMAT}:' .. generation end"

# What the scripts that know a worker begin with. ARGV: the filter's generation, worker, lease
# (ms), and more. Redis refuses a script for want of memory at its first write, and only there:
# so what `brings` something new is refused, and all else begins with a write that needs none
# where `full`.
PRELUDE = (
    _CRAWL_ID
    + """
local T, crawl, worker = KEYS[1], ARGV[1], ARGV[2]
local lease = tonumber(ARGV[3])
local function key(name) return T .. ':' .. name end
local found = redis.call('HMGET', key('crawl'), 'id', 'heard', 'start_done', 'over', 'round')
if found[1] ~= crawl_id(crawl) then return {'gone'} end
local full = redis.pcall('HSET', key('crawl'), 'id', found[1])
if type(full) ~= 'table' then
  full = false
elseif brings or not full.err:find('OOM', 1, true) then
  return full
else
  redis.call('SREM', key('starting'), '')
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local gap = now - tonumber(found[2])
if gap > lease / 2 then
  -- nobody could renew a lease: that was an outage, and not the death of all
  for _, each in ipairs(redis.call('ZRANGE', key('workers'), 0, -1)) do
    redis.call('ZINCRBY', key('workers'), gap, each)
  end
end
-- leases that a clock has given which was ahead
for _, each in ipairs(redis.call('ZRANGEBYSCORE', key('workers'), now + lease + 1, '+inf')) do
  redis.call('ZADD', key('workers'), now + lease, each)
end
redis.call('HSET', key('crawl'), 'heard', now)
local expiry = tonumber(redis.call('ZSCORE', key('workers'), worker) or nil)
if expiry and expiry < now then return {'fenced'} end
"""
)

# Puts an entry into its list. `key` is that of PRELUDE, `added` and `added_bytes` count.
PUT = """
local added, added_bytes = 0, 0
local function put(command, priority, slot, entry)
  local list = key('pending:' .. priority .. ':' .. slot)
  if redis.call('EXISTS', list) == 0 then
    redis.call('ZADD', key('priorities'), priority, priority)
    redis.call('LPUSH', key('slots:' .. priority), slot)
  end
  redis.call(command, list, entry)
  added, added_bytes = added + 1, added_bytes + #entry
end
"""

# KEYS: the filter's header. ARGV: crawl, worker, lease (ms).
HEARTBEAT = SlotScript(
    "local brings = false\n"
    + PRELUDE
    + """
if not expiry then return {'fenced'} end
redis.call('ZADD', key('workers'), now + lease, worker)
return {'done'}
"""
)

# KEYS: the filter's header. ARGV: its generation, lease (ms), round, spider or '', '1' if any
# other than that may have the crawl. Changes nothing for another. Makes the crawl unless there
# is one, takes over one of 0.2.0 that has no living worker, begins a new round of one that is over,
# and returns id, lease, round, start_done, over, the number of workers, and of those whose lease
# has not run out, and whose spider's it was.
OPEN = SlotScript(
    _CRAWL_ID
    + """
local name = KEYS[1] .. ':crawl'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function told()
  local found = redis.call('HMGET', name, 'id', 'lease', 'round', 'start_done', 'over')
  found[6] = redis.call('ZCARD', KEYS[1] .. ':workers')
  found[7] = #redis.call('ZRANGEBYSCORE', KEYS[1] .. ':workers', now, '+inf')
  found[8] = redis.call('HGET', name, 'spider') or ''
  return found
end
local found, id = told(), crawl_id(ARGV[1])
if ARGV[4] ~= '' and found[8] ~= '' and found[8] ~= ARGV[4] and ARGV[5] == '' then return found end
if found[1] == ARGV[1] and found[7] == 0 then
  for _, each in ipairs(redis.call('ZRANGE', KEYS[1] .. ':workers', 0, -1)) do
    redis.call('SADD', KEYS[1] .. ':busy', each)
  end
  redis.call('HSET', name, 'id', id)
  found[1] = id
end
if not found[1] then
  redis.call('HSET', name, 'id', id, 'lease', ARGV[2], 'round', ARGV[3],
    'start_done', '', 'over', '', 'heard', now, 'began', now)
elseif found[1] == id then
  if found[6] == 0 and found[2] ~= ARGV[2] then redis.call('HSET', name, 'lease', ARGV[2]) end
  if ARGV[3] ~= '' and found[3] ~= ARGV[3] and found[5] == '1' then
    -- the marks first: else an aborted script leaves a round without its start requests
    redis.call('UNLINK', KEYS[1] .. ':start')
    redis.call('HSET', name, 'round', ARGV[3], 'start_done', '', 'over', '')
  end
end
found = told()
if found[1] == id and found[2] == ARGV[2] and ARGV[4] ~= '' then
  redis.call('HSET', name, 'spider', ARGV[4])
end
return found
"""
)
