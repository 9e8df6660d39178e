-- Finds keys of a crawl, also of one that was removed in part.
-- KEYS: the filter's header.
-- ARGV: cursor; '1' to remove them.
-- Returns {next cursor, names of some of them, or of those that were removed}. A script, because the
-- client of a Cluster would ask all nodes.

local kinds = {}
for _, kind in ipairs({'crawl', 'progress', 'workers', 'starting', 'busy', 'batch', 'claims',
    'dispatched', 'priorities', 'slots', 'pending', 'lobby', 'lobby_counts', 'quarantined', 'later',
    'holds', 'parked', 'failed', 'limits', 'counted', 'capped', 'start', 'owners'}) do
  kinds[kind] = true
end
local pattern = KEYS[1]:gsub('[%*%?%[%]%^%-\\]', '\\%0') .. ':*'
local found = redis.call('SCAN', ARGV[1], 'MATCH', pattern, 'COUNT', 1000)
local names = {}
if ARGV[2] == '1' and redis.call('UNLINK', KEYS[1] .. ':crawl') == 1 then
  names[1] = 'crawl'  -- its state goes first, so that workers notice
end
for _, each in ipairs(found[2]) do
  local name = each:sub(#KEYS[1] + 2)
  if kinds[name:match('^[^:]*')] then
    local is_there = ARGV[2] ~= '1' or redis.call('UNLINK', each) == 1
    if is_there then names[#names + 1] = name end
  end
end
return {found[1], names}
