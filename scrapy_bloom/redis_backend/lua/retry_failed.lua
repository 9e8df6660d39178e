-- Makes failed requests pending again: each is pushed before its record is removed. Those of an
-- earlier round count in the budget of this one, and are capped if they are over it.
-- KEYS: the filter's header.
-- ARGV: '1' for those of an earlier round, too, '' to leave them where there is a budget; fields.
-- Returns {how many are pending, how many are left, or capped}, -1 if there is no crawl.

-- include in_crawl
-- include put
-- include records

local counts, carried = unpack(redis.call('HMGET', key('crawl'), 'counts', 'carried'))
-- include now

-- include budget

local left = 0
for at = 2, #ARGV do
  local field = ARGV[at]
  local found = redis.call('HGET', key('failed'), field)
  local record = found and record_of(found)
  -- what could not be serialized cannot be retried
  if record and record[3] == '0' then found, record = false, false end
  local is_carried = record and counting
    and (tonumber(record[9] or field) or 0) <= tonumber(carried or 0)
  if found and not record or is_carried and ARGV[1] == '' then
    left = left + 1
  elseif found then
    local priority, slot, entry = unpack(record, 1, 3)
    if is_carried and room_for_retry(slot) <= 0 then
      cap(priority, slot, entry:sub(2))
      left = left + 1
    else
      if is_carried then count(slot) end
      redis.call('HSET', key('crawl'), 'over', '')
      put('RPUSH', priority, slot, '0' .. entry:sub(2))
    end
    redis.call('HDEL', key('failed'), field)
  end
end
redis.call('HINCRBY', key('crawl'), 'waiting', added)
redis.call('HINCRBY', key('crawl'), 'waiting_bytes', added_bytes)
return {added, left}
