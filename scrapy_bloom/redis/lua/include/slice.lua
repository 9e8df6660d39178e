-- Returns elements of a list. Workers have no right to LRANGE.
local function slice(list, first, last)
  local found = redis.pcall('LRANGE', list, first, last)
  if not found.err then return found end
  found = {}
  for at = tonumber(first), math.min(tonumber(last), redis.call('LLEN', list) - 1) do
    found[#found + 1] = redis.call('LINDEX', list, at)
  end
  return found
end
