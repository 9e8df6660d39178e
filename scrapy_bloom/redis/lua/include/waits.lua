-- include records
-- Returns what waits for its time: how many requests are not due, in how many ms the next of them is
-- or '', how many slots are held; more than 1,000 are counted with those whose hold is over.
-- Needs `key`, and `now`.
local function waits()
  local due = redis.call('ZRANGE', key('later'), 0, 0, 'WITHSCORES')[2]
  local back = tonumber(redis.call('HGET', key('crawl'), 'back') or '') or 0
  local held = redis.call('HLEN', key('holds'))
  if held <= 1000 then
    held = 0
    local all = redis.call('HGETALL', key('holds'))  -- workers have no right to HVALS
    for at = 2, #all, 2 do
      if hold_in(all[at])[1] > now then held = held + 1 end
    end
  end
  return redis.call('ZCARD', key('later')), due and math.max(0, due - now - back) or '', held
end
