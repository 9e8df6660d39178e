-- KEYS: state, the strings of all layers that any filter may have.
-- ARGV: generation.
-- Returns the counts of the shard's layers, oldest first; false if it is gone, or one of the
-- strings.

-- include layers

local state = redis.call('HMGET', KEYS[1], 'generation', 'layers', 'count')
if state[1] ~= ARGV[1] then return false end
local layers, count = layers_of(KEYS[1], state[2], state[3])
local counts = {}
for layer = 1, layers do
  if redis.call('EXISTS', KEYS[layer + 1]) == 0 then return false end
  local found = redis.call('HGET', KEYS[1], layer - 1) or count
  counts[layer] = select(2, layers_of(KEYS[1], layers, found))
end
return counts
