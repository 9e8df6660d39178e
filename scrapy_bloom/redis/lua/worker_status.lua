-- KEYS: the filter's header.
-- ARGV: workers.
-- Returns {for each worker {claims, dispatched, whether it runs start(), time of the oldest of
-- about a hundred claims (ms, 0 for none)}, bytes of their keys or nil}.

-- include key
-- include records
-- include weigh

local found = {}
for _, each in ipairs(ARGV) do
  local name, oldest = key('claims:' .. each), nil
  local claims = redis.call('HSCAN', name, 0, 'COUNT', 100)[2]
  for at = 2, #claims, 2 do
    local at = (unpacked(claims[at]) or {})[5]
    if at and (not oldest or at < oldest) then oldest = at end
  end
  -- workers, which count what is pending under a new budget, have no right to SCARD
  local dispatched = redis.pcall('SCARD', key('dispatched:' .. each))
  if type(dispatched) == 'table' then dispatched = 0 end
  found[#found + 1] = {redis.call('HLEN', name), dispatched,
    redis.call('SISMEMBER', key('starting'), each), oldest or 0}
  for _, name in ipairs({'claims:', 'dispatched:', 'batch:'}) do weigh(key(name .. each)) end
end
return {found, bytes}
