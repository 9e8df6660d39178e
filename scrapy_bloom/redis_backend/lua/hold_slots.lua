-- Holds slots by hand, or ends holds of any kind.
-- KEYS: the filter's header.
-- ARGV: for how long (ms, or inf), '' to release; slots.
-- Returns how many slots are held now, or were; -1 if there is no crawl of this version.

-- include in_crawl
-- include put
-- include records

local found = {[7] = redis.call('HGET', key('crawl'), 'later')}
-- include now

-- include later

local changed = 0
for at = 2, #ARGV do
  local is_done = true
  if ARGV[1] == '' then
    is_done = release_slot(ARGV[at], true)
  else
    hold_slot(ARGV[at], tonumber(ARGV[1]), 0)
  end
  changed = changed + (is_done and 1 or 0)
end
return changed
