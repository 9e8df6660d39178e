-- Removes a crawl, some of it in each call; its state goes first, so workers notice.
-- KEYS: the filter's header.
-- ARGV: the most lists of requests, and the most workers, to remove.
-- Returns how many keys were removed, 0 when nothing is left.

-- include key

local gone = redis.call('DEL', key('crawl'))
for _, priority in ipairs(redis.call('ZRANGE', key('priorities'), 0, -1)) do
  local ring = key('slots:' .. priority)
  for _, slot in ipairs(redis.call('LRANGE', ring, 0, ARGV[1] - 1)) do
    gone = gone + redis.call('UNLINK', key('pending:' .. priority .. ':' .. slot))
  end
  redis.call('LTRIM', ring, ARGV[1], -1)
  if redis.call('EXISTS', ring) == 1 then return math.max(1, gone) end
  redis.call('ZREM', key('priorities'), priority)
end
for _, each in ipairs(redis.call('ZRANGE', key('workers'), 0, ARGV[1] - 1)) do
  gone = gone + redis.call('UNLINK', key('batch:' .. each), key('claims:' .. each),
    key('handed:' .. each))
  redis.call('ZREM', key('workers'), each)
end
if redis.call('EXISTS', key('workers')) == 1 then return math.max(1, gone) end
return gone + redis.call('UNLINK', key('starting'), key('busy'), key('alone'), key('failed'),
  key('start'), key('owners'), key('progress'))
