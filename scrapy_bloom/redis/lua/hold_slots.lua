-- Holds slots by hand, or ends holds of any kind.
-- KEYS: the filter's header.
-- ARGV: holds, as take_holds of include/later.lua reads them.
-- Returns how many slots are held now, or were; -1 if there is no crawl of this version.

-- include any_crawl
-- include put
-- include records

local worker = ''
local found = {[7] = redis.call('HGET', key('crawl'), 'later')}

-- include later

return take_holds(ARGV[1])
