-- KEYS: the filter's header.
-- ARGV: a list, its priority, its name in the ring.
-- Returns 1 if requests are pending in a list that no worker finds.

-- include key

if redis.call('EXISTS', key(ARGV[1])) == 0 then return 0 end
if redis.call('ZSCORE', key('parked'), ARGV[2] .. ':' .. ARGV[3]) then return 0 end
if redis.call('ZSCORE', key('priorities'), ARGV[2]) then
  if ARGV[1]:find('^lobby:') then return 0 end
  for _, named in ipairs(redis.call('LRANGE', key('slots:' .. ARGV[2]), 0, -1)) do
    if named == ARGV[3] then return 0 end
  end
end
return 1
