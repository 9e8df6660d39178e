-- KEYS: the filter's header.
-- ARGV: cursor.
-- Returns {next cursor, some names of the crawl's keys, without the filter's}. A script, because
-- the client of a Cluster would ask all nodes.

-- include key

local pattern = KEYS[1]:gsub('[%*%?%[%]%^%-\\]', '\\%0') .. ':*'
local found = redis.call('SCAN', ARGV[1], 'MATCH', pattern, 'COUNT', 1000)
local names = {}
for _, name in ipairs(found[2]) do names[#names + 1] = name:sub(#KEYS[1] + 2) end
return {found[1], names}
