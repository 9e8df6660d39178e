-- KEYS: the filter's header.
-- ARGV: priority, slot.
-- Returns 1 if requests are pending in a list that no worker finds.

-- include key

if redis.call('EXISTS', key('pending:' .. ARGV[1] .. ':' .. ARGV[2])) == 0 then return 0 end
if redis.call('ZSCORE', key('priorities'), ARGV[1]) then
  for _, slot in ipairs(redis.call('LRANGE', key('slots:' .. ARGV[1]), 0, -1)) do
    if slot == ARGV[2] then return 0 end
  end
end
return 1
