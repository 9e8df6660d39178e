-- The first part of each script that a worker calls: checks the crawl and the worker's lease, and
-- corrects leases after an outage, or that a wrong clock has given.
-- ARGV: generation, worker, lease (ms), and more. Needs `brings`: whether the call adds something.
--
-- Redis refuses a script for want of memory at its first write, and only there. So a call that
-- `brings` something is refused, and any other begins with a write that needs no memory if `full`.

-- include crawl_id

local T, crawl, worker = KEYS[1], ARGV[1], ARGV[2]
local lease = tonumber(ARGV[3])
local function key(name) return T .. ':' .. name end
local found = redis.call('HMGET', key('crawl'), 'id', 'heard', 'start_done', 'over', 'round')
if found[1] ~= crawl_id(crawl) then return {'gone'} end
local full = redis.pcall('HSET', key('crawl'), 'id', found[1])
if type(full) ~= 'table' then
  full = false
elseif brings or not full.err:find('OOM', 1, true) then
  return full
else
  redis.call('SREM', key('starting'), '')
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local gap = now - tonumber(found[2])
if gap > lease / 2 then
  -- no worker could renew its lease: an outage, and not the death of all
  for _, each in ipairs(redis.call('ZRANGE', key('workers'), 0, -1)) do
    redis.call('ZINCRBY', key('workers'), gap, each)
  end
end
-- leases that a clock has given which was ahead
for _, each in ipairs(redis.call('ZRANGEBYSCORE', key('workers'), now + lease + 1, '+inf')) do
  redis.call('ZADD', key('workers'), now + lease, each)
end
redis.call('HSET', key('crawl'), 'heard', now)
local expiry = tonumber(redis.call('ZSCORE', key('workers'), worker) or nil)
if expiry and expiry < now then return {'fenced'} end
