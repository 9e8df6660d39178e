"""The Lua scripts that Redis runs, each on the keys of one shard, atomically.

The state of a shard is a hash: `generation`, the filter that it belongs to; `layers`,
how many it has; `count`, the keys in the newest; `0`, `1`, …, the keys in the others.
Every script compares the generation and, before it writes, looks whether all strings
are there: a shard that was evicted, flushed or made anew by somebody else is answered
with GONE, never with an answer about keys.
"""

from __future__ import annotations

from .client import Script

LOADING = "loading"
"""What a filter is while `load_into_redis` is at work, or if it was killed."""

NEW, SEEN, GROWN, GONE = range(4)
"""First number in the answer of TEST_AND_SET: the key is there now and was not, or
was; it has more layers than were named, and nothing was done; it is gone."""

# KEYS: state, then the strings of all layers known to the caller and of the next one.
# ARGV: generation; "1" if it may grow; the probes' positions in their block (uint16);
# for each string the number of the block (uint32); for each string its probes, the
# keys it takes and its blocks (uint32).
TEST_AND_SET = Script("""
local state = redis.call('HMGET', KEYS[1], 'generation', 'layers', 'count')
if state[1] ~= ARGV[1] then return {3, 0, 0} end
local layers, count = tonumber(state[2]), tonumber(state[3])
if layers > #KEYS - 2 then return {2, layers, count} end
local lanes = {struct.unpack('<' .. string.rep('H', #ARGV[3] / 2), ARGV[3])}
local blocks = {struct.unpack('<' .. string.rep('I4', #ARGV[4] / 4), ARGV[4])}
local shape = {struct.unpack('<' .. string.rep('I4', #ARGV[5] / 4), ARGV[5])}
for layer = layers, 1, -1 do
  local key, origin, seen = KEYS[layer + 1], blocks[layer] * 32768, true
  for probe = 1, shape[3 * layer - 2] do
    if redis.call('GETBIT', key, origin + lanes[probe]) == 0 then
      seen = false
      break
    end
  end
  if seen then return {1, layers, count} end
end
if redis.call('EXISTS', unpack(KEYS, 2, layers + 1)) ~= layers then return {3, 0, 0} end
if ARGV[2] == '1' and count >= shape[3 * layers - 1] then
  layers = layers + 1
  -- a new string, allocated at once and in its exact size
  redis.call('DEL', KEYS[layers + 1])
  redis.call('SETBIT', KEYS[layers + 1], shape[3 * layers] * 32768 - 1, 0)
  redis.call('HSET', KEYS[1], layers - 2, count, 'layers', layers, 'count', 0)
end
local key, origin = KEYS[layers + 1], blocks[layers] * 32768
for probe = 1, shape[3 * layers - 2] do
  redis.call('SETBIT', key, origin + lanes[probe], 1)
end
return {0, layers, redis.call('HINCRBY', KEYS[1], 'count', 1)}
""")

# KEYS: state, then the string of layer 0. ARGV: generation, blocks of the string.
# Makes an empty shard, whatever was there, unless it belongs to this filter already.
MAKE_SHARD = Script("""
if redis.call('HGET', KEYS[1], 'generation') == ARGV[1] then return 0 end
redis.call('DEL', KEYS[2])
redis.call('SETBIT', KEYS[2], ARGV[2] * 32768 - 1, 0)
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'layers', 1, 'count', 0)
return 1
""")

# KEYS: state. ARGV: generation, counts of the layers, oldest first.
PUT_STATE = Script("""
redis.call('DEL', KEYS[1])
redis.call('HSET', KEYS[1], 'generation', ARGV[1], 'layers', #ARGV - 1, 'count', ARGV[#ARGV])
for layer = 2, #ARGV - 1 do redis.call('HSET', KEYS[1], layer - 2, ARGV[layer]) end
""")

# KEYS: state, then strings. ARGV: generation. Returns false if the shard is gone,
# else the counts of its layers, oldest first, as far as strings were named for them.
READ_SHARD = Script("""
local state = redis.call('HMGET', KEYS[1], 'generation', 'layers', 'count')
if state[1] ~= ARGV[1] then return false end
local counts = {}
for layer = 1, tonumber(state[2]) do
  if KEYS[layer + 1] and redis.call('EXISTS', KEYS[layer + 1]) == 0 then return false end
  counts[layer] = tonumber(redis.call('HGET', KEYS[1], layer - 1) or state[3])
end
return counts
""")

# KEYS: state, then the strings of at least all layers. ARGV: generation.
# Deletes a shard of this filter and leaves any other.
DELETE_SHARD = Script("""
if redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 0 end
return redis.call('UNLINK', unpack(KEYS))
""")

# KEYS: header. ARGV: the text of a new one, or ""; LOADING or "". Returns whether it was
# made now, the text there is, and "1", LOADING or, if not all shards are made, "".
MAKE_HEADER = Script("""
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind == 'hash' then
  local found = redis.call('HMGET', KEYS[1], 'header', 'ready')
  return {0, found[1] or '', found[2] or ''}
end
if kind ~= 'none' or ARGV[1] == '' then return {0, '', ''} end
redis.call('HSET', KEYS[1], 'header', ARGV[1], 'ready', ARGV[2])
return {1, ARGV[1], ARGV[2]}
""")

# KEYS: header. ARGV: its text. All shards have been made.
MARK_READY = Script("""
if redis.call('HGET', KEYS[1], 'header') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'ready', 1)
return 1
""")

# KEYS: header. ARGV: its text.
DELETE_HEADER = Script("""
if redis.call('HGET', KEYS[1], 'header') ~= ARGV[1] then return 0 end
return redis.call('DEL', KEYS[1])
""")
