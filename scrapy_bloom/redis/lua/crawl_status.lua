-- KEYS: the filter's header.
-- ARGV: names of the workers' counts.
-- Returns {fields of the crawl, time (ms), workers with their leases, failed, quarantined, progress,
-- bytes of the keys or nil, requests that are not due, in how many ms the next of them is or '', slots
-- that are held, slots with requests over the budget, one list of a dead slot, quarantined and delayed
-- requests that count as failed, since all of them are of dead slots}; without each worker's and each
-- slot's part.

-- include key
-- include slice
-- include weigh
-- include now
-- include waits

local workers = redis.call('ZRANGE', key('workers'), 0, -1, 'WITHSCORES')
for _, name in ipairs({'crawl', 'workers', 'starting', 'busy', 'priorities', 'quarantined', 'failed',
    'start', 'owners', 'progress', 'lobby_counts', 'later', 'holds', 'parked', 'limits',
    'counted:0', 'counted:1', 'capped'}) do
  weigh(key(name))
end
local later, due, held = waits()
local quarantined, late = redis.call('LLEN', key('quarantined')), 0
if is_dead('later') then later, due, late = 0, '', later end
if is_dead('quarantined') then quarantined, late = 0, late + quarantined end
return {redis.call('HMGET', key('crawl'), 'lease', 'round', 'start_done', 'over', 'began', 'done',
    'waiting', unpack(ARGV)),
  now, workers, redis.call('HLEN', key('failed')),
  quarantined, slice(key('progress'), 0, 59),
  bytes, later, due, held, redis.call('ZCARD', key('capped')),
  redis.call('ZRANGEBYSCORE', key('parked'), '-inf', '(0', 'LIMIT', 0, 1), late}
