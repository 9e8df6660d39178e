-- `put` makes an entry pending; `added` and `added_bytes` count. Needs `key`.
--
-- Where a priority has many slots, those with few requests share its lobby, a list of slot, NUL and
-- entry. A slot gets a list of its own, whose key takes the memory of ten entries, when its counter
-- says that it has 15 in the lobby: four bits of one string, at a hash of priority and slot. It may be
-- wrong in any way, and slots may share one: counters only say where an entry goes.
--
-- A slot with a list of its own is not pushed to the lobby: what is in that list is newer than what
-- the slot has in the lobby. Where the newest request is next, the list joins the ring at once.
-- Where the oldest is next, the slot's last entry in the lobby is an empty one, the mark, and the
-- list joins the ring when the mark leaves the lobby. Until then a second list, `pending:P:SLOT` and
-- NUL, has the requests that are older still: those that left the lobby and were not claimed, as
-- their slot had its share, and those that were given back. It is claimed before the slot's own.
local added, added_bytes = 0, 0
local many_slots, shares, has_few = 256, {}, false
local few_counters = 2097024

local function list_of(priority, named) return key('pending:' .. priority .. ':' .. named) end
local function has_list(priority, named)
  return redis.call('EXISTS', list_of(priority, named)) == 1
end

local function join_ring(priority, named)
  redis.call('ZADD', key('priorities'), priority, priority)
  redis.call('LPUSH', key('slots:' .. priority), named)
end

local function shares_lobby(priority)
  if shares[priority] == nil then
    shares[priority] = redis.call('EXISTS', key('lobby:' .. priority)) == 1
      or redis.call('LLEN', key('slots:' .. priority)) >= many_slots
    if shares[priority] then redis.call('ZADD', key('priorities'), priority, priority) end
  end
  return shares[priority]
end

-- Counts an entry of the slot in the lobby (1), or no more (-1); returns false where the counter is
-- at its end.
local function count_few(priority, slot, more)
  if not has_few and redis.call('EXISTS', key('lobby_counts')) == 0 then
    -- only a new string is allocated in its exact size, just below a megabyte
    redis.call('SETBIT', key('lobby_counts'), 4 * few_counters - 1, 0)
  end
  has_few = true
  local hash = tonumber(redis.sha1hex(priority .. ':' .. slot):sub(1, 8), 16)
  local place = '#' .. hash % few_counters
  return redis.call('BITFIELD', key('lobby_counts'), 'OVERFLOW', 'FAIL', 'INCRBY', 'u4', place, more)[1]
end

-- `command` is LPUSH for the oldest request where that is next, else RPUSH.
local function put(command, priority, slot, entry, oldest_first)
  added, added_bytes = added + 1, added_bytes + #entry
  local list = list_of(priority, slot)
  local is_new = redis.call('EXISTS', list) == 0
  if command == 'LPUSH' then
    local has_older = has_list(priority, slot .. '\0')
    if has_older or shares_lobby(priority) then
      slot, list, is_new = slot .. '\0', list .. '\0', not has_older
    end
  elseif is_new and (shares_lobby(priority)
      or oldest_first and has_list(priority, slot .. '\0')) then
    local lobby = key('lobby:' .. priority)
    if not shares[priority] then
      -- the older list may be parked, and its priority have no others
      redis.call('ZADD', key('priorities'), priority, priority)
      shares[priority] = true
    end
    if count_few(priority, slot, 1) then
      redis.call('RPUSH', lobby, slot .. '\0' .. entry)
      return
    elseif oldest_first then
      redis.call('RPUSH', lobby, slot .. '\0')
      is_new = false
    end
  end
  if is_new then join_ring(priority, slot) end
  redis.call(command, list, entry)
end

-- Makes an entry due at some time (ms), and no earlier if it is there; `hash` are four bytes.
local function put_off(due, hash, priority, slot, entry)
  local member = hash .. priority .. '\0' .. slot .. '\0' .. entry
  due = math.max(due, tonumber(redis.call('ZSCORE', key('later'), member) or 0))
  if redis.call('ZADD', key('later'), due, member) == 1 then
    added, added_bytes = added + 1, added_bytes + #entry
  end
end
