-- Finds keys of a crawl, also of one that was removed in part.
-- KEYS: the filter's header.
-- ARGV: cursor; '1' to remove them.
-- Returns {next cursor, names of some of them, or of those that were removed}. A script, because the
-- client of a Cluster would ask all nodes.

local function set(names)
  local found = {}
  for name in names:gmatch('%S+') do found[name] = true end
  return found
end

local whole = set('crawl progress workers starting busy priorities lobby_counts quarantined later'
    .. ' holds parked failed limits capped start owners')
local before_a_colon = set('batch claims dispatched slots pending lobby counted capped')
local pattern = KEYS[1]:gsub('[%*%?%[%]%^%-\\]', '\\%0') .. ':*'
local found = redis.call('SCAN', ARGV[1], 'MATCH', pattern, 'COUNT', 1000)
local names = {}
if ARGV[2] == '1' and redis.call('UNLINK', KEYS[1] .. ':crawl') == 1 then
  names[1] = 'crawl'  -- its state goes first, so that workers notice
end
for _, each in ipairs(found[2]) do
  local name = each:sub(#KEYS[1] + 2)
  if whole[name] or before_a_colon[name:match('^([^:]*):')] then
    local is_there = ARGV[2] ~= '1' or redis.call('UNLINK', each) == 1
    if is_there then names[#names + 1] = name end
  end
end
return {found[1], names}
