-- Comes after find_crawl in each script that a worker calls: checks its lease, and corrects leases
-- after an outage, or that a wrong clock has given. Needs `brings`: whether the call adds something.
--
-- Redis refuses a script for want of memory at its first write, and only there. So a call that
-- `brings` something is refused, and any other begins with a write that needs no memory if `full`.

local full = redis.pcall('HSET', key('crawl'), 'id', found[1])
if type(full) ~= 'table' then
  full = false
elseif brings or not full.err:find('OOM', 1, true) then
  return full
else
  redis.call('SREM', key('starting'), '')
end
-- include now
local gap = now - (tonumber(found[2] or '') or now)
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
-- slots that are parked by such a clock wake some at a time, in the order of a cursor
local waking = found[10] or ''
if gap < -1000 then
  waking = '0'
  redis.call('HSET', key('crawl'), 'waking', waking)
end
-- how far the clock has gone back: what is `later` is due by the clock as it was
local back = tonumber(found[9]) or 0
if gap < -1000 or back > 0 and gap > lease / 2 then
  back = math.max(0, back - gap)
  redis.call('HSET', key('crawl'), 'back', back)
end
redis.call('HSET', key('crawl'), 'heard', now)
local expiry = tonumber(redis.call('ZSCORE', key('workers'), worker) or nil)
if expiry and expiry < now then return {'fenced'} end
