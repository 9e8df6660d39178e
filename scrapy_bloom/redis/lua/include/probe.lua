-- Looks up a key in the shard at `state`. Returns an answer of test_and_set (0 new, 1 seen, 2
-- grown, 3 gone), the layers, and the keys in the newest one. For a new key also a function that
-- adds it, to a new layer if the newest is full and it `may_grow`, and returns layers and count as
-- they are then. The other arguments are those of test_and_set. A key is new only if all layers
-- exist and none has it: a shard that has lost a layer is gone.
-- include layers
local function probe(state, generation, positions, origins, shapes)
  local function bits(layer) return state .. ':' .. layer - 1 end
  local known = redis.call('HMGET', state, 'generation', 'layers', 'count')
  if known[1] ~= generation then return 3, 0, 0 end
  local layers, count = layers_of(state, known[2], known[3])
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
