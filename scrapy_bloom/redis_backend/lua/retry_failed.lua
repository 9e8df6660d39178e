-- Makes failed requests pending again: each is pushed before its record is removed.
-- KEYS: the filter's header.
-- ARGV: fields.
-- Returns how many, -1 if there is no crawl.

-- include key
-- include put

if redis.call('EXISTS', key('crawl')) == 0 then return -1 end
for _, field in ipairs(ARGV) do
  local found = redis.call('HGET', key('failed'), field)
  if found then
    local priority, slot, entry = unpack(cmsgpack.unpack(found), 1, 3)
    redis.call('HSET', key('crawl'), 'over', '')
    put('RPUSH', priority, slot, '0' .. entry:sub(2))
    redis.call('HDEL', key('failed'), field)
  end
end
redis.call('HINCRBY', key('crawl'), 'waiting', added)
redis.call('HINCRBY', key('crawl'), 'waiting_bytes', added_bytes)
return added
