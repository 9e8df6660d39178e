-- Removes a crawl, some of it in each call; its state goes first, so workers notice.
-- KEYS: the filter's header.
-- ARGV: the most lists of requests, and the most workers, to remove.
-- Returns how many keys were removed, 0 when nothing is left.

-- include key

local gone = redis.call('DEL', key('crawl'))
-- a key of another type, which somebody else has left there, goes as a whole
local function is_type(name, kind)
  local found = redis.call('TYPE', name).ok
  if found ~= kind then gone = gone + redis.call('UNLINK', name) end
  return found == kind
end
-- a slot may also have a list that is in no ring yet
local function unlink_lists(priority, named)
  local pending = 'pending:' .. priority .. ':'
  return redis.call('UNLINK', key(pending .. named), key(pending .. named:match('^%Z*')))
end
local function unlink_listed(named, unlink)
  if not is_type(key(named), 'zset') then return false end
  for _, each in ipairs(redis.call('ZRANGE', key(named), 0, ARGV[1] - 1)) do
    gone = gone + unlink(each)
    redis.call('ZREM', key(named), each)
  end
  return redis.call('EXISTS', key(named)) == 1
end
local function parked(member)
  local priority, named = member:match('^([^:]*):(.*)$')
  return priority and unlink_lists(priority, named) or 0
end
local function capped(slot) return redis.call('UNLINK', key('capped:' .. slot)) end
local function worker(each)
  return redis.call('UNLINK', key('batch:' .. each), key('claims:' .. each), key('dispatched:' .. each))
end
if unlink_listed('parked', parked) then return math.max(1, gone) end
if unlink_listed('capped', capped) then return math.max(1, gone) end
local is_set = is_type(key('priorities'), 'zset')
for _, priority in ipairs(is_set and redis.call('ZRANGE', key('priorities'), 0, -1) or {}) do
  local ring, lobby = key('slots:' .. priority), key('lobby:' .. priority)
  for _, list in ipairs({ring, lobby}) do
    if is_type(list, 'list') then
      for _, named in ipairs(redis.call('LRANGE', list, 0, ARGV[1] - 1)) do
        gone = gone + unlink_lists(priority, named)
      end
      redis.call('LTRIM', list, ARGV[1], -1)
    end
  end
  if redis.call('EXISTS', ring, lobby) > 0 then return math.max(1, gone) end
  redis.call('ZREM', key('priorities'), priority)
end
if unlink_listed('workers', worker) then return math.max(1, gone) end
return gone + redis.call('UNLINK', key('starting'), key('busy'), key('quarantined'), key('failed'),
  key('start'), key('owners'), key('progress'), key('lobby_counts'), key('later'), key('holds'),
  key('limits'), key('counted:0'), key('counted:1'))
