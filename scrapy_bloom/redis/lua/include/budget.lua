-- Budgets: how many requests of a slot, or of a pattern, a round may have. Comes after put; needs `now`,
-- and `counts`, the field of the crawl: '' or false without a budget; else '0' or '1', which of the two
-- hashes counts this round, while the other one has the last round, with an 'f' after it until this
-- round has counted anything. Its names are those of slots, and patterns with a NUL before them.
--
-- A request is counted before it is put, and under all its names at once: an aborted call may have
-- counted one too many, and never one too few.
local counting = counts and counts ~= '' and key('counted:' .. counts:sub(1, 1))
local limits, counted = {}, {}

-- Returns the names under which a request counts: of its slot, unless false, and of its pattern, unless ''.
local function names_of(slot, pattern)
  local names = {slot or nil}
  if pattern ~= '' then names[#names + 1] = '\0' .. pattern end
  return names
end

-- Returns how many more requests of a name this round may have. One without a limit is counted, too:
-- it may get one; a pattern has one.
local function room_of(name)
  if not counting then return math.huge end
  if not limits[name] then
    local own, others = unpack(redis.call('HMGET', key('limits'), name, '*'))
    limits[name] = tonumber(own or others or '') or math.huge
    counted[name] = tonumber(redis.call('HGET', counting, name) or 0)
  end
  return limits[name] - counted[name]
end

local function count(names)
  local fields = {}
  for _, name in ipairs(counting and names or {}) do
    counted[name] = counted[name] + 1
    fields[#fields + 1], fields[#fields + 2] = name, counted[name]
  end
  if #fields > 0 then redis.call('HSET', counting, unpack(fields)) end
end

-- The same for one that is retried: where a round begins, what the last one has counted leaves no
-- room either.
local function room_for_retry(name)
  local before = 0
  if counting and counts:find('f') then
    before = redis.call('HGET', key('counted:' .. 1 - counts:sub(1, 1)), name) or 0
  end
  return room_of(name) - before
end

-- Returns the first of these names that has no room, by one of the two above.
local function full_of(names, room)
  for _, name in ipairs(names) do
    if room(name) <= 0 then return name end
  end
end

-- Keeps a request for which a name has no room, and when it is due (ms) if it is not.
local function cap(priority, slot, payload, full, due)
  local list = key('capped:' .. slot)
  if redis.call('EXISTS', list) == 0 then redis.call('ZADD', key('capped'), now, slot) end
  if due then priority = priority .. '@' .. due end
  if full:byte() == 0 then priority = priority .. ' ' .. full:sub(2) end
  redis.call('RPUSH', list, priority .. '\0' .. payload)
end
