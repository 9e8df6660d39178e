-- Removes a crawl, some of it in each call; its state goes first, so workers notice.
-- KEYS: the filter's header.
-- ARGV: the most lists of requests, and the most workers, to remove.
-- Returns how many keys were removed, 0 when nothing is left.

-- include key

local gone = redis.call('DEL', key('crawl'))
-- a slot may also have a list that is in no ring yet
local function unlink_lists(priority, named)
  local pending = 'pending:' .. priority .. ':'
  return redis.call('UNLINK', key(pending .. named), key(pending .. named:match('^%Z*')))
end
for _, member in ipairs(redis.call('ZRANGE', key('parked'), 0, ARGV[1] - 1)) do
  gone = gone + unlink_lists(member:match('^([^:]*):(.*)$'))
  redis.call('ZREM', key('parked'), member)
end
if redis.call('EXISTS', key('parked')) == 1 then return math.max(1, gone) end
for _, slot in ipairs(redis.call('ZRANGE', key('capped'), 0, ARGV[1] - 1)) do
  gone = gone + redis.call('UNLINK', key('capped:' .. slot))
  redis.call('ZREM', key('capped'), slot)
end
if redis.call('EXISTS', key('capped')) == 1 then return math.max(1, gone) end
for _, priority in ipairs(redis.call('ZRANGE', key('priorities'), 0, -1)) do
  local ring, lobby = key('slots:' .. priority), key('lobby:' .. priority)
  for _, list in ipairs({ring, lobby}) do
    for _, named in ipairs(redis.call('LRANGE', list, 0, ARGV[1] - 1)) do
      gone = gone + unlink_lists(priority, named)
    end
    redis.call('LTRIM', list, ARGV[1], -1)
  end
  if redis.call('EXISTS', ring, lobby) > 0 then return math.max(1, gone) end
  redis.call('ZREM', key('priorities'), priority)
end
for _, each in ipairs(redis.call('ZRANGE', key('workers'), 0, ARGV[1] - 1)) do
  gone = gone + redis.call('UNLINK', key('batch:' .. each), key('claims:' .. each),
    key('handed:' .. each))
  redis.call('ZREM', key('workers'), each)
end
if redis.call('EXISTS', key('workers')) == 1 then return math.max(1, gone) end
return gone + redis.call('UNLINK', key('starting'), key('busy'), key('alone'), key('failed'),
  key('start'), key('owners'), key('progress'), key('few'), key('later'), key('holds'),
  key('limits'), key('counted:0'), key('counted:1'))
