-- KEYS: the filter's header.
-- ARGV: priority, first slot, last slot.
-- Returns {slot, pending requests, slot, …, bytes of their keys or -1}.

-- include key
-- include weigh

local counts = {}
for _, slot in ipairs(redis.call('LRANGE', key('slots:' .. ARGV[1]), ARGV[2], ARGV[3])) do
  local list = key('pending:' .. ARGV[1] .. ':' .. slot)
  counts[#counts + 1] = slot
  counts[#counts + 1] = redis.call('LLEN', list)
  weigh(list)
end
if ARGV[2] == '0' then weigh(key('slots:' .. ARGV[1])) end
return {counts, unknown and -1 or bytes}
