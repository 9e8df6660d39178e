-- KEYS: the filter's header.
-- ARGV: first and last place among the slots with requests over the budget, in the order in which
-- each got its first one.
-- Returns {slot, how many, slot, …, bytes of their keys or -1}.

-- include key
-- include weigh

local found = {}
for _, slot in ipairs(redis.call('ZRANGE', key('capped'), ARGV[1], ARGV[2])) do
  local list = key('capped:' .. slot)
  found[#found + 1], found[#found + 2] = slot, redis.call('LLEN', list)
  weigh(list)
end
return {found, unknown and -1 or bytes}
