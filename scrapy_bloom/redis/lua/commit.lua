-- One group commit of a worker, in this order: dictionaries; the lease; holds; new requests;
-- acknowledgements, failures and returned claims; claims of dead workers; what is due; new claims; the
-- end of the crawl; its figures.
--
-- KEYS: the filter's header.
-- ARGV:
--   1-3    generation, worker, lease (ms)
--   4      number of the call
--   5      '1' while the worker runs start()
--   6      '1' if start() has ended
--   7      claims wanted; -1 while no host answers the worker, or if it asks none
--   8      most claims of a slot
--   9      slots, and the worker's claims in each, as text with NUL
--   10     '1' for each kind whose newest request is next: others, start requests
--   11     how long the worker owns a slot (ms), 0 for not at all
--   12     losses after which a request has failed
--   13-15  claims: acknowledged; dispatched from now on; all that the worker keeps
--   16     how many claims have failed
--   17     '', 'leave', or 'over' to leave and end the crawl
--   18     the worker's counts since its last call, as words: COUNTED of crawl/figures.py
--   19     the worker's round: only in it can this call end start() or the crawl
--   20     ids of the dictionaries that the worker knows, as words: its requests may use any of them
--   21     how many dictionaries it offers: those that it was asked for, and a proposal
--   22     claims that it returns, since their slot is held, the last one first
--   23     holds, as take_holds of include/later.lua reads them
--   24     longest pause (ms) while one request asks whether a hold may end
-- then for each dictionary: id; text.
-- then for each failed claim: claim; page; reason; attempts; details as JSON, or ''; the payload of
-- a retry, or '' for the same.
-- then for each entry: 'push', 'count' to do no more than count it (the payload has the details of its
-- record if it is over), '' for a fingerprint or a mark without a request; shard; positions, blocks and
-- shape as for test_and_set; priority; slot; payload; the mark of a start request, or ''; in how many ms
-- it is due, or ''; '1' if it counts in the budget of its slot, else '0', and its pattern, or ''.
--
-- Returns {'fenced'}, {'gone'}, {'dictionary', ids} if the crawl lacks some that the worker knows:
-- nothing was done, and the call is to be sent again with them; or {'done', answers, layers, counts,
-- claimed, reclaimed, still, start_done, failed, waiting, waiting_bytes, round, full, texts of the
-- dictionaries that the worker does not know, later}. `later` is empty if nothing is delayed or held,
-- else {how many requests are not due, ms until something is, 'inf' or '', whether nothing else is left,
-- holds of the slots in 9 and of new claims, each slot, until when, how long (ms), how many in a row,
-- with a NUL between them, slots with a NUL that do not answer the worker and have answered others}. A
-- client of Redis takes longer to read an array than a string: so answers are digits, layers and counts
-- words, and a claim is its number, its priority, its slot, '1' if it is quarantined, and its payload,
-- with a NUL between them. The answer for an entry: 0 pushed, 1 seen, 2 the shard has more layers than
-- the caller knows, 4 a start request that was taken, 5 over the budget of its slot, 6 of its pattern.

local first_failed = 25 + 2 * ARGV[21]
local first_entry = first_failed + 6 * ARGV[16]
local brings = ARGV[first_entry]
local function words(text) return string.gmatch(text, '%S+') end

-- include find_crawl

local kept, known, lacking = {}, {}, {}
for id in words(found[6] or '') do kept[#kept + 1], kept[id] = id, true end
for at = 25, first_failed - 1, 2 do known[ARGV[at]] = 'offered' end
for id in words(ARGV[20]) do
  if not kept[id] and not known[id] then lacking[#lacking + 1] = id end
  known[id] = 'named'
end
if #lacking > 0 then return {'dictionary', lacking} end

-- include enter
-- include put
-- include records
-- include probe

-- one that a request may use is kept in any case; of proposals the first, unless there are eight
local is_first = not full and #kept < 8
for _, id in ipairs(kept) do is_first = is_first and known[id] == 'named' end
for at = 25, first_failed - 1, 2 do
  local id = ARGV[at]
  if not kept[id] and (known[id] == 'named' or is_first) then
    kept[#kept + 1], kept[id] = id, true
    redis.call('HSET', key('crawl'), 'dictionary:' .. id, ARGV[at + 1], 'dictionaries',
      table.concat(kept, ' '))
  end
end
local news = {}
for _, id in ipairs(kept) do
  if known[id] ~= 'named' then
    news[#news + 1] = redis.call('HGET', key('crawl'), 'dictionary:' .. id) or nil
  end
end

local number = tonumber(ARGV[4])
local batch, mine = key('batch:' .. worker), key('claims:' .. worker)
local dispatched = key('dispatched:' .. worker)
local last = redis.call('HMGET', batch, 'number', 'reply', 'pushed', 'answered')
if not expiry and number > 1 then return {'fenced'} end
if expiry and tonumber(last[1]) == number then return cmsgpack.unpack(last[2]) end
if (tonumber(last[1]) or 0) ~= number - 1 then return {'fenced'} end

local newest = {[0] = ARGV[10]:sub(1, 1) == '1', ARGV[10]:sub(2, 2) == '1'}
local function is_newest(priority) return newest[priority % 2] end
local most_probe = tonumber(ARGV[24])

-- include later

local counts = found[8]

-- include budget

local function give_back(from, claim, packed, blamed)
  local record = record_of(packed)
  if not record then
    redis.call('HSET', key('failed'), claim, packed)  -- it cannot be read
    redis.call('HDEL', key('claims:' .. from), claim)
    return
  end
  local priority, slot, entry, quarantined = unpack(record, 1, 4)
  local losses = (tonumber(quarantined or entry:sub(1, 1)) or 0) + (blamed and 1 or 0)
  if not quarantined then entry = losses .. entry:sub(2) end
  if quarantined and losses >= tonumber(ARGV[12]) then
    redis.call('HSET', key('failed'), claim,
      cmsgpack.pack({priority, slot, entry, 'worker_died', losses + 2, from, now, ''}))
  elseif quarantined or losses >= 2 then
    redis.call('RPUSH', key('quarantined'),
      cmsgpack.pack({priority, slot, entry, quarantined and losses or 0}))
    added, added_bytes = added + 1, added_bytes + #entry
  else
    local newest_first = is_newest(priority)
    put(newest_first and 'RPUSH' or 'LPUSH', priority, slot, entry, not newest_first)
  end
  redis.call('HDEL', key('claims:' .. from), claim)
end

-- what is given back by a call is limited; what is left has its turn in those that follow
local given_back, most_given_back = 0, 200
local function reclaim(each)
  redis.call('ZADD', key('workers'), 0, each)  -- fenced, though some claims may be left
  redis.call('SREM', key('starting'), each)
  if given_back >= most_given_back then return 0 end
  local records, claims, cursor = {}, {}, '0'
  repeat
    local found = redis.call('HSCAN', key('claims:' .. each), cursor, 'COUNT', 100)
    cursor = found[1]
    for at = 1, #found[2], 2 do
      if not records[found[2][at]] then claims[#claims + 1] = found[2][at] end
      records[found[2][at]] = found[2][at + 1]
    end
  until cursor == '0' or #claims >= most_given_back
  -- from the last one, so that the first is in front again
  table.sort(claims, function(one, other) return (tonumber(one) or 0) > (tonumber(other) or 0) end)
  for _, claim in ipairs(claims) do
    local blamed = redis.call('SISMEMBER', key('dispatched:' .. each), claim) == 1
    give_back(each, claim, records[claim], blamed)
    local record = has_later and record_of(records[claim])
    if record then end_probe(record[2]) end
  end
  given_back = given_back + #claims + 10
  if cursor == '0' then
    redis.call('UNLINK', key('batch:' .. each), key('dispatched:' .. each))
    redis.call('SREM', key('busy'), each)
    redis.call('ZREM', key('workers'), each)
  end
  return #claims
end

redis.call('ZADD', key('workers'), now + lease, worker)
redis.call(ARGV[5] == '1' and 'SADD' or 'SREM', key('starting'), worker)
if ARGV[7] == '-1' then redis.call('HSET', batch, 'paused', now + lease) end

take_holds(ARGV[23])

-- A call that is made again has pushed so many entries: of these, it leaves out those that no
-- fingerprint and no mark would.
local pushed = last[3] and last[3]:match('^' .. number .. ' (%d+)$')
pushed = counting and tonumber(pushed or 0) or 0

local answers, layers, keys_in, adds = {}, {}, {}, 0
local in_round = found[5] == ARGV[19]
for at = first_entry, #ARGV, 11 do
  local kind, shard, positions, blocks, shape, priority, slot, payload, mark, delay, counts_in =
    unpack(ARGV, at, at + 10)
  local names = kind == '' and {} or names_of(counts_in:byte() == 49 and slot, counts_in:sub(2))
  local answer, add, top, in_layer = 0, nil, 0, 0
  if mark ~= '' and redis.call('SISMEMBER', key('start'), mark) == 1 then
    answer = 4
  elseif positions ~= '' then
    answer, top, in_layer, add = probe(key(shard), crawl, positions, blocks, shape)
    if answer == 3 then return {'gone'} end
  end
  local is_raw = kind == 'push' and not add and mark == ''
  if is_raw and answer == 0 and #answers < pushed then
    kind = ''
  elseif answer == 0 and counting and #names > 0 then
    local over = full_of(names, room_of)
    if not over then
      if counts:find('f') then
        counts = counts:sub(1, 1)
        redis.call('HSET', key('crawl'), 'counts', counts)
      end
      count(names)
    else
      if kind == 'count' then
        redis.call('HSET', key('failed'), payload, cmsgpack.pack({'0', slot, '0', 'unserializable', 0,
          worker, now, payload, tonumber(redis.call('HGET', key('crawl'), 'claims') or 0)}))
      else
        cap(priority, slot, payload, over, delay ~= '' and now + back + delay)
      end
      answer = over:byte() == 0 and 6 or 5
    end
  end
  if answer == 0 and kind == 'push' then
    if found[4] == '1' then
      redis.call('HSET', key('crawl'), 'over', '')
      found[4] = ''
    end
    local entry = '0' .. payload
    if delay == '' then
      put('RPUSH', priority, slot, entry, not is_newest(priority))
    else
      local serial = redis.sha1hex(worker .. ':' .. number .. ':' .. #answers):sub(1, 8)
      put_later(tonumber(serial, 16), priority, slot, entry, delay)
    end
  end
  if is_raw and counting and kind ~= '' then
    redis.call('HSET', batch, 'pushed', number .. ' ' .. #answers + 1)
  end
  if add then
    top, in_layer = add(true)
    adds = adds + 1
  end
  if (answer == 0 or answer > 4) and mark ~= '' then
    redis.call('SADD', key('start'), mark)
  end
  local last = #answers + 1
  answers[last], layers[last], keys_in[last] = answer, top, in_layer
end

local function each_of(text, command, name)
  local claims = {}
  for claim in words(text) do claims[#claims + 1] = claim end
  return #claims > 0 and redis.call(command, name, unpack(claims)) or 0
end
local done = each_of(ARGV[13], 'HDEL', mine)
each_of(ARGV[13], 'SREM', dispatched)
if done > 0 then redis.call('HINCRBY', key('crawl'), 'done', done) end
each_of(ARGV[14], 'SADD', dispatched)
for at = first_failed, first_entry - 1, 6 do
  local failing, again = ARGV[at], ARGV[at + 5]
  local record = redis.call('HGET', mine, failing)
  if record then
    local priority, slot, entry = unpack(record_of(record) or {'0', '', '0'}, 1, 3)
    if again ~= '' then entry = '0' .. again end
    redis.call('HSET', key('failed'), ARGV[at + 1], cmsgpack.pack({priority, slot, entry,
      ARGV[at + 2], tonumber(ARGV[at + 3]), worker, now, ARGV[at + 4], failing}))
    redis.call('HDEL', mine, failing)
    redis.call('SREM', dispatched, failing)
  end
end
for returned in words(ARGV[22]) do
  local record = redis.call('HGET', mine, returned)
  if record then
    give_back(worker, returned, record, false)
    redis.call('SREM', dispatched, returned)
  end
end

local reclaimed = 0
for _, each in ipairs(redis.call('ZRANGEBYSCORE', key('workers'), '-inf', '(' .. now)) do
  reclaimed = reclaimed + reclaim(each)
end
if ARGV[17] ~= '' then
  redis.call('UNLINK', dispatched)  -- what it has not finished is no loss
  reclaim(worker)
end

if has_later and not full then move_due(tonumber(ARGV[7]) > 0) end

local claimed, owned, owned_count = {}, {}, 0
local function tell(number, priority, slot, entry, quarantined)
  claimed[#claimed + 1] = table.concat(
    {number, priority, slot, quarantined and 1 or 0, entry:sub(2)}, '\0')
end
for claim in words(ARGV[15]) do owned[claim], owned_count = true, owned_count + 1 end
if redis.call('HLEN', mine) ~= owned_count then
  -- claims of a call that was aborted
  local all = redis.call('HGETALL', mine)
  for at = 1, #all, 2 do
    local record = not owned[all[at]] and #claimed < 500 and record_of(all[at + 1])
    if record then tell(all[at], unpack(record, 1, 4)) end
  end
end

-- before they are taken: what is counted is never more than there is
local function count_less(count) redis.call('HINCRBY', key('crawl'), 'waiting', -count) end
local is_busy = false
local function claim(priority, slot, entry, quarantined, command, list)
  if not is_busy then redis.call('SADD', key('busy'), worker) end
  is_busy = true
  local number = redis.call('HINCRBY', key('crawl'), 'claims', 1)
  redis.call('HSET', mine, number, cmsgpack.pack({priority, slot, entry, quarantined, now}))
  redis.call(command, list)
  added_bytes = added_bytes - #entry
  tell(number, priority, slot, entry, quarantined)
end

local wanted, most_of_slot, keeps = tonumber(ARGV[7]), tonumber(ARGV[8]), tonumber(ARGV[11])
if full then wanted = 0 end
local of_slot, new_owners = {}, 0
if wanted > 0 and owned_count == 0 and #claimed == 0 then
  for _ = 1, math.min(20, redis.call('LLEN', key('quarantined'))) do
    local packed = redis.call('LINDEX', key('quarantined'), 0)
    local record = record_of(packed)
    local hold = record and hold_of(record[2])
    if not record then
      redis.call('HSET', key('failed'), 'quarantined:' .. redis.sha1hex(packed), packed)
      count_less(1)
      redis.call('LPOP', key('quarantined'))
    elseif not hold or hold[1] <= now and not is_left_to_others(hold) then
      if hold then probe_slot(record[2], hold) end
      count_less(1)
      claim(record[1], record[2], record[3], record[4], 'LPOP', key('quarantined'))
      of_slot[record[2]], wanted = 1, 0
      break
    else
      redis.call('RPOPLPUSH', key('quarantined'), key('quarantined'))
    end
  end
end
wanted = wanted - #claimed

local function keep(slot)
  local record = cmsgpack.pack({worker, now + keeps})
  new_owners = new_owners + redis.call('HSET', key('owners'), slot, record)
end
for slot, count in ARGV[9]:gmatch('(%Z*)%z(%Z*)%z') do
  of_slot[slot] = tonumber(count)
  if keeps > 0 then keep(slot) end
end
local function may_have(slot)
  if keeps == 0 then return true end
  local owner = redis.call('HGET', key('owners'), slot)
  if owner then
    local who, till = unpack(unpacked(owner) or {})
    local silent_to = (hold_of(slot) or {})[5] or {}
    if silent_to[who] then till = nil end  -- another one is to find out if the slot answers
    if type(till) == 'number' and type(who) == 'string' and who ~= worker and till > now and redis.call('ZSCORE', key('workers'), who) then
      if till > now + keeps then
        -- by a clock that was ahead
        redis.call('HSET', key('owners'), slot, cmsgpack.pack({who, now + keeps}))
      end
      return false
    end
  end
  keep(slot)
  return true
end

local looks = 500  -- of some µs each; one that parks a list counts as six
-- Lets entries leave the lobby, at most so many; returns how many.
local function claim_from_lobby(priority, most)
  local lobby, suffix, command, pop, at = key('lobby:' .. priority), '', 'LPUSH', 'RPOP', -1
  if not is_newest(priority) then suffix, command, pop, at = '\0', 'RPUSH', 'LPOP', 0 end
  local left, claimable = 0, math.min(most, redis.call('LLEN', lobby))
  if claimable < 1 then return 0 end
  count_less(claimable)
  while left < most and looks > 0 do
    local found = redis.call('LINDEX', lobby, at)
    if not found then break end
    local slot, entry = found:match('^(%Z*)%z(.*)$')
    if not slot then slot, entry = '', found end
    local has_own, hold = has_list(priority, slot .. suffix), hold_of(slot)
    local is_held = hold and hold[1] > now
    if entry == '' and (suffix == '' or not has_own) then
      join_ring(priority, slot)
      redis.call(pop, lobby)
    elseif has_own or is_held or hold and is_left_to_others(hold)
        or (of_slot[slot] or 0) >= most_of_slot or not may_have(slot) then
      if not has_own and is_held then
        park(priority, slot .. suffix, slot, hold)
        looks = looks - 5
      elseif not has_own then join_ring(priority, slot .. suffix) end
      redis.call(command, list_of(priority, slot .. suffix), entry)
      if entry ~= '' then count_few(priority, slot, -1) end
      redis.call(pop, lobby)
    else
      count_few(priority, slot, -1)
      if hold then probe_slot(slot, hold) end
      claim(priority, slot, entry, false, pop, lobby)
      of_slot[slot] = (of_slot[slot] or 0) + 1
      wanted, claimable = wanted - 1, claimable - 1
    end
    left, looks = left + 1, looks - 1
  end
  added = added + claimable
  return left
end

local has_many = redis.call('EXISTS', key('lobby_counts')) == 1  -- slots, now or earlier
for _, priority in ipairs(redis.call('ZRANGE', key('priorities'), 0, 99)) do
  local ring, lobby = key('slots:' .. priority), key('lobby:' .. priority)
  local oldest_first, pop, at = true, 'LPOP', 0
  if is_newest(priority) then oldest_first, pop, at = false, 'RPOP', -1 end
  local taken
  repeat
    taken = 0
    local left, in_lobby = redis.call('LLEN', ring), redis.call('LLEN', lobby)
    if wanted > 0 and in_lobby > 0 then
      -- each of its entries counts as a slot; rounded up in some calls, down in others
      local share = math.min(in_lobby, left + 1000)
      share = wanted * share / (share + left)
      taken = claim_from_lobby(priority, math.floor(share + number * 0.618 % 1))
      left = redis.call('LLEN', ring)
    end
    local share = math.ceil(wanted / left)
    while wanted > 0 and left > 0 and looks > 0 do
      left, looks = left - 1, looks - 1
      local named = redis.call('RPOPLPUSH', ring, ring)
      local slot, list = named:match('^%Z*'), list_of(priority, named)
      local room, hold = math.min(share, wanted, most_of_slot - (of_slot[slot] or 0)), hold_of(slot)
      if named ~= slot or hold then room = math.min(room, 1) end
      if hold and hold[1] > now then
        park(priority, named, slot, hold)
        redis.call('LREM', ring, 1, named)
        room, looks = 0, looks - 5
      elseif hold and is_left_to_others(hold) then
        room = 0
      elseif named ~= slot then
        if redis.call('LINDEX', list, at) == '' then join_ring(priority, slot) end
        while redis.call('LINDEX', list, at) == '' do  -- twice, after an aborted script
          redis.call(pop, list)
          taken = taken + 1
        end
      elseif oldest_first and has_many and has_list(priority, slot .. '\0') then
        room = 0
      end
      local count = room > 0 and math.min(room, redis.call('LLEN', list)) or 0
      if count > 0 and may_have(slot) then
        local place, command = at, pop
        if hold then
          -- the last in line takes turns with the first, which may be refused for ever
          if hold[2] % 2 == 1 and hold[3] > 0 and named == slot then
            place, command = -1 - at, pop == 'LPOP' and 'RPOP' or 'LPOP'
          end
          probe_slot(slot, hold)
        end
        count_less(count)
        for _ = 1, count do
          claim(priority, slot, redis.call('LINDEX', list, place), false, command, list)
        end
        of_slot[slot] = (of_slot[slot] or 0) + count
        wanted, taken = wanted - count, taken + count
      end
      if redis.call('EXISTS', list) == 0 then
        redis.call('LREM', ring, 1, named)
        -- a counter that is too high goes down in time
        if has_many then count_few(priority, slot, -1) end
      end
    end
    if taken == 0 and in_lobby > 0 then taken = claim_from_lobby(priority, wanted) end
  until taken == 0 or wanted <= 0 or looks <= 0
  if redis.call('EXISTS', ring, lobby) == 0 then
    redis.call('ZREM', key('priorities'), priority)
  end
  if wanted <= 0 or looks <= 0 then break end
end

-- owners whose time is over leave, two looks for each that has come
if new_owners > 0 and redis.call('HLEN', key('owners')) > 1000 then
  local from = redis.call('HGET', key('crawl'), 'swept') or '0'
  local found = redis.call('HSCAN', key('owners'), from, 'COUNT', 2 * new_owners)
  for at = 1, #found[2], 2 do
    if (tonumber((unpacked(found[2][at + 1]) or {})[2]) or 0) <= now then
      redis.call('HDEL', key('owners'), found[2][at])
    end
  end
  redis.call('HSET', key('crawl'), 'swept', found[1])
end

if not is_busy and redis.call('EXISTS', mine) == 0 then redis.call('SREM', key('busy'), worker) end
if ARGV[6] == '1' and in_round and found[3] ~= '1' then
  redis.call('HSET', key('crawl'), 'start_done', 1)
  found[3] = '1'
end

local waiting = redis.call('HINCRBY', key('crawl'), 'waiting', added)
local waiting_bytes = redis.call('HINCRBY', key('crawl'), 'waiting_bytes', added_bytes)
local rests = redis.call('ZCARD', key('priorities')) == 0
  and (redis.call('EXISTS', key('quarantined')) == 0 or has_later and is_dead('quarantined'))
local delayed = has_later and first_of('later') and not (rests and is_dead('later'))
local waits = delayed or has_later and first_of('parked')
local still = rests and not waits
-- how many wait for dead hosts, at the last count; of a new one so many of the first lists
local host, counted_to, counted_sum = (has_later and found[11] or '0 0 0'):match('(%d+) (%d+) (%d+)')
host = tonumber(host)
local is_all, kept = true, 0
if still and has_later then
  local rows
  rows, is_all = dead_rows(0)
  if is_all then host = rows end
  kept = host + redis.call('LLEN', key('quarantined')) + redis.call('ZCARD', key('later'))
end
-- too few after an aborted script, never too many: some list was evicted
if still and is_all and waiting > kept then return {'gone'} end
if still and kept == 0 and (waiting ~= 0 or waiting_bytes ~= 0) then
  redis.call('HSET', key('crawl'), 'waiting', 0, 'waiting_bytes', 0)
  waiting, waiting_bytes = 0, 0
end
if rests then
  -- what is at work has a lease, or has lost it with its name: pcall, since it may have no right
  for _, name in ipairs({'starting', 'busy'}) do
    local members = redis.pcall('SMEMBERS', key(name))
    for _, each in ipairs(members.err and {} or members) do
      if not redis.call('ZSCORE', key('workers'), each) then
        redis.call('ZADD', key('workers'), 0, each)
      end
    end
  end
end
rests = rests and redis.call('EXISTS', key(found[3] == '1' and 'busy' or 'starting'), key('busy')) == 0
still = still and rests
if still and ARGV[17] == 'over' and in_round and found[3] == '1' then
  redis.call('HSET', key('crawl'), 'over', 1)
  redis.call('UNLINK', key('owners'))
end

local counted = {'pages', 'items', 'duplicates', 'retries', 'added'}
local place = 0
for more in words(ARGV[18] .. ' ' .. adds) do
  place = place + 1
  if tonumber(more) > 0 then redis.call('HINCRBY', key('crawl'), counted[place], more) end
end
local newest_note = redis.call('LINDEX', key('progress'), 0)
local is_note, noted = pcall(cjson.decode, newest_note or '')
local age = is_note and type(noted) == 'table' and type(noted.time) == 'number' and now - noted.time
local is_due = not age or age < 0 or age >= 1000
if is_due and has_later then
  local rows, is_end = dead_rows(tonumber(counted_to))
  rows = rows + counted_sum
  if is_end then host = rows end
  local next_count = is_end and '0 0' or counted_to + 500 .. ' ' .. rows
  if rows > 0 or found[11] then
    redis.call('HSET', key('crawl'), 'host', host .. ' ' .. next_count)
  end
end
if still then host = math.max(host, kept) end  -- all that is kept waits for dead hosts
local failed = redis.call('HLEN', key('failed')) + host
waiting = math.max(0, waiting - host)
if is_due then
  local note = {time = now, pending = waiting, failed = failed}
  local totals = redis.call('HMGET', key('crawl'), 'done', unpack(counted))
  note.done = tonumber(totals[1] or '') or 0
  for at, name in ipairs(counted) do note[name] = tonumber(totals[at + 1] or '') or 0 end
  redis.call('LPUSH', key('progress'), cjson.encode(note))
  redis.call('LTRIM', key('progress'), 0, 59)
end
local later, answered = {}, last[4] or ''
if answered ~= '' then redis.call('HSET', batch, 'answered', '') end
if has_later or answered ~= '' then
  local holds = {}
  for slot in pairs(of_slot) do
    local hold = hold_of(slot)
    if hold then
      holds[#holds + 1] = table.concat({slot, hold[1], hold[1] - now, hold[2]}, '\0')
    end
  end
  later = {delayed and redis.call('ZCARD', key('later')) or 0, next_due(), rests and 1 or 0, holds,
    answered}
  if not first_of('later') and redis.call('EXISTS', key('holds'), key('parked')) == 0 then
    redis.call('HSET', key('crawl'), 'later', '', 'back', '', 'waking', '')
  end
end
local reply = {'done', table.concat(answers), table.concat(layers, ' '),
  table.concat(keys_in, ' '), claimed, reclaimed, still and 1 or 0,
  found[3] == '1' and 1 or 0, failed, waiting, waiting_bytes, found[5], full and 1 or 0, news,
  later}
if ARGV[17] == '' then
  redis.call('HSET', batch, 'number', number, 'reply', cmsgpack.pack(reply))
end
return reply
