-- Removes the first marks that wait in a crawl, if they are those that the caller has carried over:
-- another worker may have done the same meanwhile.
-- KEYS: the filter's header.
-- ARGV: how many; SHA-1 of all of them, one after the other.
-- Returns 1 if it has removed them, else 0.

-- include key

local first = redis.call('LRANGE', key('delta_waiting'), 0, ARGV[1] - 1)
if redis.sha1hex(table.concat(first)) ~= ARGV[2] then return 0 end
redis.call('LTRIM', key('delta_waiting'), ARGV[1], -1)
return 1
