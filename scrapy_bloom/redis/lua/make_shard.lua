-- Makes a shard with empty strings, and removes what another filter has left in its place. Does
-- nothing if the shard belongs to this filter already.
-- KEYS: state, the strings of all layers that any filter may have.
-- ARGV: generation; for each layer its blocks and the keys in it, oldest first.
-- Returns 1 if it was made.

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
