-- Requests that are not due, and slots that are held. Comes after put; needs `now`, `is_newest`, `back`
-- of enter, and `most_probe`, for how long (ms) a hold goes on while one request asks whether it may end.
--
-- A request that is not due is in one place, `later`, by the time when it is due: it joins its list
-- then. A resend of the call that brought it has the same `serial`, and so finds it there.
--
-- A slot in `holds` is asked by no worker until its time is over, and then by one at a time: who
-- claims that request holds the slot again. A held slot that a claim meets in the ring moves to
-- `parked` until then, since a ring of held slots would be looked through in vain. In either its
-- list is named: it joins the ring before it leaves `parked`, and the other way round.
--
-- One with SILENT in a row or more does not answer; with SILENT alone it gets one request at a time. Such
-- a hold has the end that was set last, and goes on while its request waits for an answer. `silent_to`
-- has the workers that have held it: a host is dead when it has not answered two of those that live, if
-- there are two.
--
-- One with DEAD in a row or more is dead: what waits for it has failed, and the crawl ends without it. Its
-- lists are parked by the end of the hold below 0, which is when they are asked again.
--
-- One that is by hand has 0 in a row: no answer ends it, and after its time all workers ask.
--
-- A field of the crawl says whether there may be any, so that a call without them asks for no key.
local has_later = found[7] == '1'

local function note_later()
  if not has_later then redis.call('HSET', key('crawl'), 'later', 1) end
  has_later = true
end

-- When the first of `later` or `parked` is due (ms), false if there is none but of dead slots: read once
-- a call, and again after a change.
local firsts = {}
local function first_of(name)
  if firsts[name] == nil then
    local _, first = unpack(redis.call('ZRANGEBYSCORE', key(name), 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1))
    first = tonumber(first or '')
    firsts[name] = first and first - (name == 'later' and back or 0) or false
  end
  return firsts[name]
end

-- Returns the lists of dead slots, from one on, at most so many.
local function dead_lists(from, most)
  return redis.call('ZRANGEBYSCORE', key('parked'), '-inf', '(0', 'LIMIT', from, most)
end

-- Returns how many requests 500 of them have, and whether there are no more.
local function dead_rows(from)
  local lists, rows = dead_lists(from, 500), 0
  for _, each in ipairs(lists) do
    rows = rows + redis.call('LLEN', key('pending:' .. each))
    local own = each:match('^(%Z*)%z$')
    if own and not redis.call('ZSCORE', key('parked'), own) then
      -- behind a mark, or in its ring
      rows = rows + math.max(0, redis.call('LLEN', key('pending:' .. own)) - 1)
    end
  end
  return rows, #lists < 500
end

local function put_later(serial, priority, slot, entry, delay)
  note_later()
  firsts.later = nil
  put_off(now + back + delay, struct.pack('>I4', serial), priority, slot, entry)
end

-- A hold: until when, how many in a row, its pause (ms), in which priorities it is parked, silent_to.
local function keep_hold(slot, hold)
  redis.call('HSET', key('holds'), slot, cmsgpack.pack(hold))
end

local function hold_of(slot)
  local packed = has_later and redis.call('HGET', key('holds'), slot)
  if not packed then return nil end
  local hold = hold_in(packed)
  if hold[1] > now + hold[3] then
    -- by a clock that was ahead
    hold[1] = now + hold[3]
    keep_hold(slot, hold)
  end
  if hold[2] <= 0 and hold[1] <= now then
    redis.call('HDEL', key('holds'), slot)
    return nil
  end
  return hold
end

-- Parks its lists again that are, where a slot is dead now, or no more, or its hold ends sooner.
local function park_again(slot, hold)
  for priority in pairs(hold[4]) do
    for _, named in ipairs({slot, slot .. '\0'}) do
      local member = priority .. ':' .. named
      if redis.call('ZSCORE', key('parked'), member) then
        redis.call('ZADD', key('parked'), hold[2] >= DEAD and -hold[1] or hold[1], member)
      end
    end
  end
  firsts.parked = nil
end

-- Tells whether any worker but these has a lease, and answers of hosts.
local function has_others(these)
  for _, each in ipairs(redis.call('ZRANGEBYSCORE', key('workers'), now, '+inf', 'LIMIT', 0, 20)) do
    local paused_until = redis.call('HGET', key('batch:' .. each), 'paused') or 0
    if not these[each] and tonumber(paused_until) < now then return true end
  end
end

-- Tells whether others shall find out for a while if a slot answers that has not answered the worker.
local function is_left_to_others(hold)
  return hold[5] and hold[5][worker] and hold[1] + 2000 > now and has_others(hold[5])
end

-- Tells whether a slot is dead that has not answered the worker.
local function is_agreed(hold)
  for each in pairs(hold[5]) do
    local expiry = each ~= worker and redis.call('ZSCORE', key('workers'), each)
    if expiry and tonumber(expiry) >= now then return true end
  end
  return not has_others({[worker] = 1})
end

-- Tells the workers that a slot does not answer that it has answered this one.
local function tell_of_answer(slot, silent_to)
  for each in pairs(silent_to[worker] and {} or silent_to) do
    local batch = key('batch:' .. each)
    if redis.call('EXISTS', batch) == 1 then
      local before = redis.call('HGET', batch, 'answered') or ''
      redis.call('HSET', batch, 'answered', before .. slot .. '\0')
    end
  end
end

local function hold_slot(slot, pause, times)
  note_later()
  local hold = hold_of(slot) or {0, 0, 0, {}}
  local was_dead, before = hold[2] >= DEAD, hold[1]
  if times > SILENT then
    hold[5] = hold[5] or {}
    -- 50 ms let another worker find out, by one that no host answers: ONE_BY_ONE of crawl/hosts.py
    if pause > 50 then hold[5][worker] = hold[5][worker] or 1 end
  end
  if times >= DEAD and not was_dead and not is_agreed(hold) then
    -- soon the first time, since it is the turn of another one
    pause, times = hold[5][worker] == 2 and 60000 or 5000, math.max(SILENT, hold[2])
    hold[5][worker] = 2
  end
  local is_by_hand = times == 0 or hold[2] == 0 and hold[1] > now
  local is_set = not is_by_hand and (times >= SILENT or pause == 0)
  if is_set or now + pause > hold[1] then
    hold[1], hold[3] = now + pause, pause
  end
  hold[2] = is_by_hand and 0 or math.max(hold[2], times)
  keep_hold(slot, hold)
  if was_dead ~= (hold[2] >= DEAD) or hold[1] < before then park_again(slot, hold) end
end

-- Lets one request be claimed of a slot whose hold is over; others wait for what comes of it.
local function probe_slot(slot, hold)
  if hold[2] >= SILENT then hold[3] = 2 * most_probe end
  hold[1] = now + (hold[2] >= SILENT and hold[3] or math.min(hold[3], most_probe))
  keep_hold(slot, hold)
end

-- Lets another request ask in the place of the one of a silent slot whose worker has died.
local function end_probe(slot)
  local hold = hold_of(slot)
  if hold and hold[2] >= SILENT and hold[3] == 2 * most_probe then
    hold[1] = math.min(hold[1], now)
    keep_hold(slot, hold)
    park_again(slot, hold)
  end
end

local function park(priority, named, slot, hold)
  if not hold[4][priority] then
    hold[4][priority] = 1
    keep_hold(slot, hold)
  end
  redis.call('ZADD', key('parked'), hold[2] >= DEAD and -hold[1] or hold[1], priority .. ':' .. named)
  firsts.parked = nil
end

local function unpark(member)
  local priority, named = member:match('^([^:]*):(.*)$')
  if named and has_list(priority, named) then join_ring(priority, named) end
  redis.call('ZREM', key('parked'), member)
  firsts.parked = nil
end

local function release_slot(slot, by_hand)
  local hold = hold_of(slot)
  if not hold or hold[2] == 0 and not by_hand then return false end
  if hold[2] >= DEAD then redis.call('HSET', key('crawl'), 'over', '') end
  for priority in pairs(hold[4]) do
    for _, named in ipairs({slot, slot .. '\0'}) do
      local member = priority .. ':' .. named
      if redis.call('ZSCORE', key('parked'), member) then unpark(member) end
    end
  end
  redis.call('HDEL', key('holds'), slot)
  if hold[5] and not by_hand then tell_of_answer(slot, hold[5]) end
  return true
end

-- Holds and releases slots: of each as text with NUL the slot, a pause (ms, or inf), how many in a row,
-- 0 by hand; without a pause, to release it, how many in a row the worker knows. Returns how many are
-- held now, or were.
local function take_holds(text)
  local changed = 0
  for slot, pause, times in text:gmatch('(%Z*)%z(%Z*)%z(%Z*)%z') do
    if pause ~= '' then hold_slot(slot, tonumber(pause), tonumber(times)) end
    if pause ~= '' or release_slot(slot, times == '0') then changed = changed + 1 end
  end
  return changed
end

-- Makes about 500 parked slots due: each is parked again if its hold is not over.
local function wake_parked()
  local cursor, members = unpack(redis.call('ZSCAN', key('parked'), waking, 'COUNT', 500))
  for at = 1, #members, 2 do redis.call('ZADD', key('parked'), 0, members[at]) end
  if cursor == '0' then cursor = '' end
  redis.call('HSET', key('crawl'), 'waking', cursor)
  firsts.parked = nil
end

-- Moves at most a hundred of each: requests that are due, slots whose hold is over, and of dead slots
-- those that the call may ask again.
local function move_due(asks_dead)
  if waking == '' and ((first_of('parked') or 0) > now or dead_lists(0, 1)[1])
      and redis.call('EXISTS', key('holds')) == 0 then
    waking = '0'  -- nothing says any more that they are held
  end
  if waking ~= '' then wake_parked() end
  local function due(name)
    if (first_of(name) or math.huge) > now then return ipairs({}) end
    local till = name == 'later' and now + back or now
    return ipairs(redis.call('ZRANGEBYSCORE', key(name), 0, till, 'LIMIT', 0, 100))
  end
  for _, member in due('later') do
    local priority, slot, entry = member:match('^(%Z*)%z(%Z*)%z(.*)$', 5)
    -- it has been counted
    if is_priority(priority) then
      put('RPUSH', priority, slot, entry, not is_newest(priority))
      added, added_bytes = added - 1, added_bytes - #entry
    else
      redis.call('HSET', key('failed'), 'later:' .. redis.sha1hex(member), member)
      added = added - 1
    end
    redis.call('ZREM', key('later'), member)
    firsts.later = nil
  end
  for _, member in due('parked') do unpark(member) end
  if not asks_dead then return end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', key('parked'), -now, '(0', 'LIMIT', 0, 100)) do
    unpark(member)
  end
end

-- Returns when the next request is due, or the next hold is over, in ms from now: 'inf' if all that
-- waits does until a release, '' if nothing waits.
local function next_due()
  if not (first_of('later') or first_of('parked')) then return '' end
  local first = math.min(first_of('later') or math.huge, first_of('parked') or math.huge)
  return first == math.huge and 'inf' or math.max(0, first - now)
end
