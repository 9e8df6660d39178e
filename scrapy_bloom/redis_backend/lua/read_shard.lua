-- KEYS: state, strings.
-- ARGV: generation.
-- Returns the counts of the shard's layers, oldest first; false if it is gone, or one of the
-- strings.

local state = redis.call('HMGET', KEYS[1], 'generation', 'layers', 'count')
if state[1] ~= ARGV[1] then return false end
local counts = {}
for layer = 1, tonumber(state[2]) do
  if KEYS[layer + 1] and redis.call('EXISTS', KEYS[layer + 1]) == 0 then return false end
  counts[layer] = tonumber(redis.call('HGET', KEYS[1], layer - 1) or state[3])
end
return counts
