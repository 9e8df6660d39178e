-- Holds slots by hand, or ends holds of any kind.
-- KEYS: the filter's header.
-- ARGV: for how long (ms, or inf), '' to release; slots.
-- Returns how many slots are held now, or were; -1 if there is no crawl of this version.

-- include any_crawl
-- include put
-- include records

local found = {[7] = redis.call('HGET', key('crawl'), 'later')}

-- include later

local changed = 0
for at = 2, #ARGV do
  if ARGV[1] ~= '' then hold_slot(ARGV[at], tonumber(ARGV[1]), 0) end
  if ARGV[1] ~= '' or release_slot(ARGV[at], true) then changed = changed + 1 end
end
return changed
