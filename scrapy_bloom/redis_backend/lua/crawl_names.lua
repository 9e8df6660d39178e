-- Finds keys of a crawl, also of one that was removed in part.
-- KEYS: the filter's header.
-- ARGV: cursor; '1' to remove them.
-- Returns {next cursor, names of some of them}. A script, because the client of a Cluster would ask
-- all nodes.

local kinds = {}
for _, kind in ipairs({'crawl', 'progress', 'workers', 'starting', 'busy', 'batch', 'claims',
    'dispatched', 'priorities', 'slots', 'pending', 'lobby', 'lobby_counts', 'quarantined', 'later',
    'holds', 'parked', 'failed', 'limits', 'counted', 'capped', 'start', 'owners'}) do
  kinds[kind] = true
end
local pattern = KEYS[1]:gsub('[%*%?%[%]%^%-\\]', '\\%0') .. ':*'
local found = redis.call('SCAN', ARGV[1], 'MATCH', pattern, 'COUNT', 1000)
local names = {}
for _, each in ipairs(found[2]) do
  local name = each:sub(#KEYS[1] + 2)
  if kinds[name:match('^[^:]*')] then
    names[#names + 1] = name
    if ARGV[2] == '1' then redis.call('UNLINK', each) end
  end
end
return {found[1], names}
