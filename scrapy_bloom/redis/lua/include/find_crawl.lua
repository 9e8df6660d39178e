-- The beginning of each script that a worker calls: checks the crawl, and writes nothing.
-- ARGV: generation, worker, lease (ms), and more.

-- include crawl_id
-- include key

local crawl, worker = ARGV[1], ARGV[2]
local lease = tonumber(ARGV[3])
local found = redis.call('HMGET', key('crawl'), 'id', 'heard', 'start_done', 'over', 'round',
  'dictionaries', 'later', 'counts', 'back', 'waking', 'host')
if found[1] ~= crawl_id(crawl) then return {'gone'} end
