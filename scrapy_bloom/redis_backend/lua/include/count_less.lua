-- For scripts that drop what is pending, after put. What goes is counted before, so that what is
-- counted is never more than there is. Without memory Redis refuses a script at its first write, and
-- not this one.
redis.call('SREM', key('starting'), '')

local function count_less(count, bytes)
  redis.call('HINCRBY', key('crawl'), 'waiting', -count)
  redis.call('HINCRBY', key('crawl'), 'waiting_bytes', -bytes)
end

-- Takes the name of a list that is empty out of its ring, and from what is parked.
local function forget_list(priority, named)
  if has_list(priority, named) then return end
  redis.call('LREM', key('slots:' .. priority), 1, named)
  redis.call('ZREM', key('parked'), priority .. ':' .. named)
end
