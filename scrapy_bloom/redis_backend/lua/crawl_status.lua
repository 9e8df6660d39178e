-- KEYS: the filter's header.
-- ARGV: names of the workers' counts.
-- Returns {fields of the crawl, time (ms), workers with their leases, failed, alone, progress,
-- bytes of the keys or -1}; without each worker's and each slot's part.

-- include key
-- include weigh

local time = redis.call('TIME')
local workers = redis.call('ZRANGE', key('workers'), 0, -1, 'WITHSCORES')
for _, name in ipairs({'crawl', 'workers', 'starting', 'busy', 'priorities', 'alone', 'failed',
    'start', 'owners', 'progress', 'few'}) do
  weigh(key(name))
end
return {redis.call('HMGET', key('crawl'), 'lease', 'round', 'start_done', 'over', 'began', 'done',
    'waiting', unpack(ARGV)),
  time[1] * 1000 + math.floor(time[2] / 1000), workers, redis.call('HLEN', key('failed')),
  redis.call('LLEN', key('alone')), redis.call('LRANGE', key('progress'), 0, -1),
  unknown and -1 or bytes}
