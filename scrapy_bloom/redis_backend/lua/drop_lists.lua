-- Drops all that is pending in the lists of a slot, however long they are.
-- KEYS: the filter's header.
-- ARGV: priority, slot.
-- Returns how many requests; -1 if there is no crawl of this version.

-- include in_crawl
-- include put
-- include count_less

local priority, slot = ARGV[1], ARGV[2]
local dropped = 0
for _, named in ipairs({slot .. '\0', slot}) do
  local list = list_of(priority, named)
  local count = redis.call('LLEN', list)
  if count > 0 then
    if redis.call('LINDEX', list, -1) == '' then count = count - 1 end
    -- the mean of some, since to read all of them takes long
    local some, bytes = redis.call('LRANGE', list, 0, 49), 0
    for _, entry in ipairs(some) do bytes = bytes + #entry end
    count_less(count, math.floor(bytes / #some * count))
    redis.call('UNLINK', list)
    forget_list(priority, named)
    dropped = dropped + count
  end
end
return dropped
