"""The Lua scripts that Redis runs, each on the keys of one shard, atomically.

The state of a shard is a hash: `generation`, the filter that it belongs to; `layers`,
how many it has; `count`, the keys in the newest; `0`, `1`, …, the keys in the others.
Every script compares the generation and, before it writes, looks whether all strings
are there: a shard that was evicted, flushed or made anew by somebody else is answered
with GONE, never with an answer about keys.

Atomic means that nobody else gets in between. A script that fails keeps what it has
written: a command may be forbidden, find a key of another type, or no memory. So what
is written first does no harm alone, and the bits of a key are set by the last command,
all or none: a key whose script has failed is not in the filter.

A script that was answered may be sent again when the answer is lost; a second time it
does nothing more, apart from TEST_AND_SET, whose second answer may be wrong.
"""

from __future__ import annotations

from .client import Script

LOADING = "loading"
"""What a filter is while `load_into_redis` is at work, or if it was killed."""

GROW, FILL, LOOK = "grow", "fill", "look"
"""What TEST_AND_SET may do with a new key: add a layer for it if the newest is full, add
it to the newest anyway, or nothing."""

NEW, SEEN, GROWN, GONE = range(4)
"""First number in the answer of TEST_AND_SET: the key was not there, and now it is
unless it only was to LOOK, or it was; it has more layers than were named, and nothing
was done; it is gone."""

# Asks the shard at `state` for a key. Returns one of these numbers, its layers, and the keys in
# the newest; with NEW also what adds the key, to a new layer if need be where `may_grow`, and
# returns the layers and the keys in the newest then. What else it takes is as for TEST_AND_SET.
# Only a key that is in no layer is new, so a shard that has lost any of them is gone.
PROBE = """
local function probe(state, generation, positions, origins, shapes)
  local function bits(layer) return state .. ':' .. layer - 1 end
  local known = redis.call('HMGET', state, 'generation', 'layers', 'count')
  if known[1] ~= generation then return 3, 0, 0 end
  local layers, count = tonumber(known[2]), tonumber(known[3])
  local lanes = {struct.unpack('<' .. string.rep('H', #positions / 2), positions)}
  local blocks = {struct.unpack('<' .. string.rep('I4', #origins / 4), origins)}
  local shape = {struct.unpack('<' .. string.rep('I4', #shapes / 4), shapes)}
  if layers >= #origins / 4 then return 2, layers, count end
  local strings = {}
  for layer = layers, 1, -1 do
    local origin, seen = blocks[layer] * 32768, true
    strings[layer] = bits(layer)
    for at = 1, shape[3 * layer - 2] do
      if redis.call('GETBIT', strings[layer], origin + lanes[at]) == 0 then
        seen = false
        break
      end
    end
    if seen then return 1, layers, count end
  end
  if redis.call('EXISTS', unpack(strings, 1, layers)) ~= layers then return 3, 0, 0 end
  return 0, layers, count, function(may_grow)
    if may_grow and count >= shape[3 * layers - 1] then
      layers = layers + 1
      -- only a new string is allocated in its exact size; UNLINK would be the first to write
      -- and Redis refuses only the first for want of memory
      if redis.call('EXISTS', bits(layers)) == 1 then redis.call('UNLINK', bits(layers)) end
      redis.call('SETBIT', bits(layers), shape[3 * layers] * 32768 - 1, 0)
      redis.call('HSET', state, layers - 2, count, 'layers', layers, 'count', 0)
    end
    count = redis.call('HINCRBY', state, 'count', 1)
    local origin, sets = blocks[layers] * 32768, {}
    for at = 1, shape[3 * layers - 2] do
      local last = 4 * at
      sets[last - 3], sets[last - 2] = 'SET', 'u1'
      sets[last - 1], sets[last] = origin + lanes[at], 1
    end
    redis.call('BITFIELD', bits(layers), unpack(sets))
    return layers, count
  end
end
"""

# KEYS: state, then the strings of all layers known to the caller and of the next one.
# ARGV: generation; GROW, FILL or LOOK; the probes' positions in their block (uint16);
# for each string the number of the block (uint32); for each string its probes, the
# keys it takes and its blocks (uint32).
TEST_AND_SET = Script(
    PROBE
    + """
local answer, layers, count, add = probe(KEYS[1], ARGV[1], ARGV[3], ARGV[4], ARGV[5])
if add and ARGV[2] ~= 'look' then layers, count = add(ARGV[2] == 'grow') end
return {answer, layers, count}
"""
)

# KEYS: state, then the strings of all layers that any filter may have. ARGV: generation;
# for each layer its blocks and the keys in it, oldest first.
# Makes a shard with empty strings, in place of what another filter has left there, unless
# it belongs to this filter already.
MAKE_SHARD = Script("""
if redis.call('HGET', KEYS[1], 'generation') == ARGV[1] then return 0 end
if redis.call('EXISTS', unpack(KEYS)) > 0 then redis.call('UNLINK', unpack(KEYS)) end
local layers = (#ARGV - 1) / 2
local state = {'generation', ARGV[1], 'layers', layers, 'count', ARGV[#ARGV]}
for layer = 1, layers do
  redis.call('SETBIT', KEYS[layer + 1], ARGV[2 * layer] * 32768 - 1, 0)
  if layer < layers then
    state[#state + 1] = layer - 1
    state[#state + 1] = ARGV[2 * layer + 1]
  end
end
redis.call('HSET', KEYS[1], unpack(state))
return 1
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

# KEYS: state, then the strings of all layers that any filter may have. ARGV: generation,
# or "" for any. Deletes a shard of this filter, leaves that of any other, and returns how
# many keys are gone.
DELETE_SHARD = Script("""
if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 0 end
return redis.call('UNLINK', unpack(KEYS))
""")

# KEYS: header. ARGV: the text of a new one, or ""; LOADING or "". Returns the type of what
# is there, or now is; its text, or ""; and "1", LOADING or, if not all shards are made, "".
MAKE_HEADER = Script("""
local kind = redis.call('TYPE', KEYS[1])['ok']
if kind == 'hash' then
  local found = redis.call('HMGET', KEYS[1], 'header', 'ready')
  return {kind, found[1] or '', found[2] or ''}
end
if kind ~= 'none' or ARGV[1] == '' then return {kind, '', ''} end
redis.call('HSET', KEYS[1], 'header', ARGV[1], 'ready', ARGV[2])
return {'hash', ARGV[1], ARGV[2]}
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
return redis.call('UNLINK', KEYS[1])
""")
