-- Changes requests of a place, as far as they are still there: drops them, lets them fail, or makes
-- failed and capped ones pending again, each in its new place before it leaves the old one.
-- KEYS: the filter's header.
-- ARGV: place, one of scan; action: 'drop', 'fail' or 'retry'; '1' to retry also what an earlier round
-- has counted where there is a budget; so many from the first of a list on are changed, 'all' to drop
-- the lists of a slot in one step, or '' and then for each that the caller has read: element; '' to leave
-- it, else '1' and the pattern that counts it, or for one that fails its attempts, a space, details as
-- JSON, LF and its page.
-- Returns what became of each at which it has looked, in the first letters of the actions, 's' for one
-- that stays, such as a capped one whose pattern is full, and 'l' for one that the budget has no room
-- for; for 'all' how many; -1 if there is no crawl of this version.
--
-- The first elements of a list are compared with those that were read: one that workers have put
-- there meanwhile ends the call, and so does a capped one whose slot has no room. What stays goes
-- to the end of the list. A mark in a lobby, or before a slot's own list, lets that list join its ring
-- now: see include/put.lua.

-- include any_crawl
-- include put
-- include records

-- Without memory Redis refuses a script at its first write, and only there: one that makes room shall
-- pass, and one that takes some has written nothing then.
local place, action, is_now, most = unpack(ARGV, 1, 4)
if action == 'retry' then
  redis.call('HSET', key('crawl'), 'id', id)
else
  redis.call('SREM', key('starting'), '')
end
local counts, carried, back = unpack(redis.call('HMGET', key('crawl'), 'counts', 'carried', 'back'))
carried, back = tonumber(carried or '') or 0, tonumber(back or '') or 0

-- include budget

local kind, rest = place:match('^(%a+):?(.*)$')
local list_priority, named = rest:match('^([^:]*):(.*)$')
local list = key(place)

-- What goes is counted before, so that what is counted is never more than there is.
local function count_less(count, bytes)
  redis.call('HINCRBY', key('crawl'), 'waiting', -count)
  redis.call('HINCRBY', key('crawl'), 'waiting_bytes', -bytes)
end

-- Takes the name of a list that is empty out of its ring, and from what is parked.
local function forget_list(named)
  if has_list(list_priority, named) then return end
  redis.call('LREM', key('slots:' .. list_priority), 1, named)
  redis.call('ZREM', key('parked'), list_priority .. ':' .. named)
end

if most == 'all' then
  local dropped = 0
  for _, each in ipairs({named .. '\0', named}) do
    list = list_of(list_priority, each)
    local length = redis.call('LLEN', list)
    if length > 0 then
      local count = redis.call('LPOS', list, '') and length - 1 or length
      -- the mean of some, since to read all of them takes long
      local some, bytes = redis.call('LRANGE', list, 0, 49), 0
      for _, entry in ipairs(some) do bytes = bytes + #entry end
      count_less(count, math.floor(bytes * length / #some))
      redis.call('UNLINK', list)
      forget_list(each)
      dropped = dropped + count
    end
  end
  return dropped
end

-- Returns priority, slot, entry, the record of an element, and when it is due (ms) if it says so; the
-- entry of a mark is empty, and that of what cannot be read is missing.
local function parsed(element, packed)
  if kind == 'pending' then return list_priority, named:match('^%Z*'), element end
  if kind == 'later' then return element:match('^(%Z*)%z(%Z*)%z(.*)$', 5) end
  if kind == 'failed' or kind == 'quarantined' then
    local record = record_of(packed or element) or {}
    return record[1], record[2], record[3], record
  end
  local first, second = element:match('^(%Z*)%z(.*)$')
  if kind == 'lobby' then return rest, first or '', second or element end
  local priority, due = (first or ''):match('^([^@%s]*)@?(%d*)')
  return priority, rest, is_priority(priority) and '0' .. second or nil, nil, tonumber(due)
end

local function remove(element)
  if kind == 'later' then redis.call('ZREM', list, element)
  elseif kind == 'failed' then redis.call('HDEL', list, element)
  else redis.call('LPOP', list) end
end

-- Returns nil where a list has no room for more.
local function retry(element, pattern, priority, slot, entry, record, due)
  if kind == 'capped' and not entry then
    redis.call('HSET', key('failed'), 'capped:' .. redis.sha1hex(element), element)
    remove(element)
    return 'd'
  -- what cannot be read, or could not be serialized, cannot be retried
  elseif not entry or entry == '0' and kind == 'failed' then return 's' end
  local counts_now = kind == 'capped'
    or counting and (tonumber(record[9] or element) or 0) <= carried
  local names = names_of(slot, pattern)
  local full = counts_now and full_of(names, room_for_retry)
  if full == slot and kind == 'capped' then return nil end
  if counts_now and kind == 'failed' and is_now == '' then return 'l' end
  if full then
    cap(priority, slot, entry:sub(2), full, due)
  else
    if counts_now then count(names) end
    redis.call('HSET', key('crawl'), 'over', '')
    if due and due > now + back then
      redis.call('HSET', key('crawl'), 'later', 1)
      put_off(due, redis.sha1hex(redis.call('LLEN', list) .. element):sub(1, 4), priority, slot, entry)
    else
      put('RPUSH', priority, slot, '0' .. entry:sub(2))
    end
  end
  remove(element)
  return not full and 'r' or kind == 'capped' and 's' or 'l'
end

local function change(element, verdict, packed)
  local priority, slot, entry, record, due = parsed(element, packed)
  if entry == '' then
    if has_list(priority, slot) then join_ring(priority, slot) end
    redis.call('LPOP', list)
    return 's'
  elseif verdict == '' then
    if not packed then
      redis.call('RPUSH', list, element)
      redis.call('LPOP', list)
    end
    return 's'
  elseif action == 'retry' then
    return retry(element, verdict:sub(2), priority, slot, entry, record, due)
  end
  if kind ~= 'failed' and kind ~= 'capped' then count_less(1, #(entry or '')) end
  if action == 'fail' then
    local claim = redis.call('HINCRBY', key('crawl'), 'claims', 1)
    local attempts, details, page = verdict:match('^(%d+) ([^\n]*)\n(.*)$')
    redis.call('HSET', key('failed'), page, cmsgpack.pack({priority, slot, entry, 'dropped',
      tonumber(attempts), '', now, details, tostring(claim)}))
  end
  remove(element)
  if kind == 'lobby' then count_few(priority, slot, -1) end
  return action:sub(1, 1)
end

local answers, verdicts = {}, {}
local read = kind == 'later' and 'ZSCORE' or kind == 'failed' and 'HGET'
for at = 5, #ARGV, 2 do
  local element, verdict = ARGV[at], ARGV[at + 1]
  verdicts[element] = verdict
  local packed = read and redis.call(read, list, element)
  if packed then answers[#answers + 1] = change(element, verdict, packed) end
end
for _ = 1, read and 0 or tonumber(most) or (#ARGV - 4) / 2 do
  local element = redis.call('LINDEX', list, 0)
  local verdict = element and (most ~= '' and '1' or verdicts[element])
  local answer = verdict and change(element, verdict)
  if not answer then break end
  answers[#answers + 1] = answer
end
if kind == 'pending' then forget_list(named) end
if kind == 'capped' and redis.call('EXISTS', list) == 0 then redis.call('ZREM', key('capped'), rest) end
if added > 0 then
  redis.call('HINCRBY', key('crawl'), 'waiting', added)
  redis.call('HINCRBY', key('crawl'), 'waiting_bytes', added_bytes)
end
return table.concat(answers)
