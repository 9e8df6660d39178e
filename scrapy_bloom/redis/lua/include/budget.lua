-- Budgets: how many requests of a slot a round may have. Comes after put; needs `now`, and `counts`,
-- the field of the crawl: '' or false without a budget; else '0' or '1', which of the two hashes
-- counts this round, while the other one has the last round, with an 'f' after it until this round
-- has counted anything.
--
-- A request is counted before it is put: an aborted call may have counted one too many of a slot,
-- and never one too few.
local counting = counts and counts ~= '' and key('counted:' .. counts:sub(1, 1))
local limits, counted = {}, {}

-- Returns how many more requests of a slot this round may have. One without a limit is counted, too:
-- it may get one.
local function room_of(slot)
  if not counting then return math.huge end
  if not limits[slot] then
    local own, others = unpack(redis.call('HMGET', key('limits'), slot, '*'))
    limits[slot] = tonumber(own or others or '') or math.huge
    counted[slot] = tonumber(redis.call('HGET', counting, slot) or 0)
  end
  return limits[slot] - counted[slot]
end

local function count(slot)
  if not counting then return end
  counted[slot] = counted[slot] + 1
  redis.call('HSET', counting, slot, counted[slot])
end

-- The same for one that is retried: where a round begins, what the last one has counted leaves no
-- room either.
local function room_for_retry(slot)
  local before = 0
  if counting and counts:find('f') then
    before = redis.call('HGET', key('counted:' .. 1 - counts:sub(1, 1)), slot) or 0
  end
  return room_of(slot) - before
end

-- Keeps a request that is over the budget.
local function cap(priority, slot, payload)
  local list = key('capped:' .. slot)
  if redis.call('EXISTS', list) == 0 then redis.call('ZADD', key('capped'), now, slot) end
  redis.call('RPUSH', list, priority .. '\0' .. payload)
end
