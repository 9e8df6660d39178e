-- KEYS: the filter's header.
-- ARGV: a list of requests over the budget, first, last.
-- Returns {requests, how many of them cannot be read, 1 if workers find the list}.

-- include key
-- include readable

local found, bad = redis.call('LRANGE', key(ARGV[1]), ARGV[2], ARGV[3]), 0
for _, element in ipairs(found) do
  local payload = element:match('^%Z*%z(.+)$')
  if not payload or not is_readable('0' .. payload) then bad = bad + 1 end
end
local is_named = redis.call('ZSCORE', key('capped'), ARGV[1]:match('^%a+:(.*)$'))
return {#found, bad, (#found == 0 or is_named) and 1 or 0}
