-- KEYS: the filter's header.
-- Returns {id, whether the crawl is over, workers at work that are unknown, claims, whether
-- requests are pending (above 0), but for those of dead slots}, all of one moment.

-- include key
-- include records

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
local waits = redis.call('EXISTS', key('priorities'))
  + #redis.call('ZRANGEBYSCORE', key('parked'), 0, '+inf', 'LIMIT', 0, 1)
for _, name in ipairs({'later', 'quarantined'}) do
  if redis.call('EXISTS', key(name)) == 1 and not is_dead(name) then waits = waits + 1 end
end
return {crawl[1], crawl[2] == '1' and 1 or 0, strangers, claims, waits}
