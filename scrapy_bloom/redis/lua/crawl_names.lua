-- Finds keys of a crawl, also of one that was removed in part.
-- KEYS: the filter's header.
-- ARGV: cursor; '1' to remove them.
-- Returns {next cursor, names of some of them, or of those that were removed}. A script, because the
-- client of a Cluster would ask all nodes.

local known = {}
for name in ('crawl progress workers starting busy priorities lobby_counts quarantined later holds parked'
    .. ' failed limits capped start owners batch: claims: dispatched: slots: pending: lobby: counted:'
    .. ' capped:'):gmatch('%S+') do known[name] = true end
local pattern = KEYS[1]:gsub('[%*%?%[%]%^%-\\]', '\\%0') .. ':*'
local found = redis.call('SCAN', ARGV[1], 'MATCH', pattern, 'COUNT', 1000)
local names = {}
if ARGV[2] == '1' and redis.call('UNLINK', KEYS[1] .. ':crawl') == 1 then
  names[1] = 'crawl'  -- its state goes first, so that workers notice
end
for _, each in ipairs(found[2]) do
  local name = each:sub(#KEYS[1] + 2)
  local is_ours = known[name:match('^[^:]*:?')]
  if is_ours and (ARGV[2] ~= '1' or redis.call('UNLINK', each) == 1) then names[#names + 1] = name end
end
return {found[1], names}
