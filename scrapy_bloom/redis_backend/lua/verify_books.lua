-- KEYS: the filter's header.
-- Returns {id, whether the crawl is over, workers at work that are unknown, claims, whether
-- requests are pending (above 0)}, all of one moment.

-- include key

local crawl = redis.call('HMGET', key('crawl'), 'id', 'over')
local strangers, claims = 0, 0
for _, name in ipairs({'starting', 'busy'}) do
  for _, each in ipairs(redis.call('SMEMBERS', key(name))) do
    local has_claims = redis.call('EXISTS', key('claims:' .. each)) == 1
    if not (has_claims or redis.call('ZSCORE', key('workers'), each)) then
      strangers = strangers + 1
    end
  end
end
for _, each in ipairs(redis.call('ZRANGE', key('workers'), 0, -1)) do
  claims = claims + redis.call('HLEN', key('claims:' .. each))
end
local waits = redis.call('EXISTS', key('quarantined'), key('later'), key('parked'))
for _, priority in ipairs(redis.call('ZRANGE', key('priorities'), 0, -1)) do
  waits = waits + redis.call('EXISTS', key('lobby:' .. priority))
  if waits > 0 then break end
  for _, slot in ipairs(redis.call('LRANGE', key('slots:' .. priority), 0, 99)) do
    waits = waits + redis.call('EXISTS', key('pending:' .. priority .. ':' .. slot))
  end
end
return {crawl[1], crawl[2] == '1' and 1 or 0, strangers, claims, waits}
