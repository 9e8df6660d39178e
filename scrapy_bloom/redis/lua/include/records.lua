-- Returns the table that was packed, nil where that cannot be read.
local function unpacked(packed)
  local is_packed, record = pcall(cmsgpack.unpack, packed or '')
  return is_packed and type(record) == 'table' and record or nil
end

-- Tells whether text may be a priority, which others are compared with.
local function is_priority(text)
  return type(text) == 'string' and #text < 20 and text:find('^%-?%d+$') ~= nil
end

-- Returns the record of a request, nil where that cannot be read.
local function record_of(packed)
  local record = unpacked(packed)
  if record and is_priority(record[1]) and type(record[2]) == 'string'
      and type(record[3]) == 'string' then return record end
end

-- Returns a hold, one that is over where that cannot be read: see include/later.lua.
local function hold_in(packed)
  local hold = unpacked(packed) or {}
  for at, kind in ipairs({'number', 'number', 'number', 'table'}) do
    if type(hold[at]) ~= kind then return {0, 0, 0, {}} end
  end
  return hold
end

-- In a row of holds, with their number: see include/later.lua, and crawl/delays.py.
local SILENT, DEAD = 1500000, 2000000

-- Tells whether all of `later` or `quarantined` is of dead slots. One that has more than 20 is not
-- looked through: it waits.
local function is_dead(name)
  local is_later, members = name == 'later', {}
  if is_later then members = redis.call('ZRANGE', key(name), 0, 20) end
  for at = 0, is_later and -1 or math.min(20, redis.call('LLEN', key(name)) - 1) do
    members[at + 1] = redis.call('LINDEX', key(name), at)
  end
  for _, each in ipairs(members) do
    local slot = is_later and each:match('^%Z*%z(%Z*)', 5) or not is_later and (record_of(each) or {})[2]
    if not slot or hold_in(redis.call('HGET', key('holds'), slot))[2] < DEAD then return false end
  end
  return #members <= 20
end
