-- Renews a worker's lease.
-- KEYS: the filter's header.
-- ARGV: generation, worker, lease (ms).
-- Returns {'done'}, {'fenced'} or {'gone'}.

local brings = false

-- include find_crawl
-- include enter

if not expiry then return {'fenced'} end
redis.call('ZADD', key('workers'), now + lease, worker)
return {'done'}
