-- Takes seeds from a list and notes each beside it until the worker strikes it off, or its lease has
-- run out: then the next one takes it. A note that cannot be read is a seed itself, which makes no
-- request.
-- KEYS: the list, set or sorted set of seeds; the hash of taken ones: name → {seed, worker}; the hash
-- of workers → end of the lease (ms).
-- ARGV: how many are wanted; the lease (ms); the worker; the cursor in the hash of taken ones, of
-- which a call reads some hundred; names of notes to strike off.
-- Returns {{name, seed} of each, how many are left (0, or more than 0), next cursor, the names that
-- it has struck off: those that no other worker has taken since}.

-- include records

-- include now
local wanted, lease, worker, taken = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], {}
local function note(name, element)
  redis.call('HSET', KEYS[2], name, cmsgpack.pack({element, worker}))
  taken[#taken + 1] = {name, element}
end
local function note_of(packed)
  local record = unpacked(packed) or {}
  if type(record[1]) == 'string' and type(record[2]) == 'string' then return record end
  return {packed, ''}
end

redis.call('HSET', KEYS[3], worker, now + lease)
local leases, has_lease = redis.call('HGETALL', KEYS[3]), {}
for at = 1, #leases, 2 do
  local till = tonumber(leases[at + 1]) or 0
  has_lease[leases[at]] = till >= now
  if till < now then redis.call('HDEL', KEYS[3], leases[at]) end
  -- by a clock that was ahead
  if till > now + lease then redis.call('HSET', KEYS[3], leases[at], now + lease) end
end

local struck = {}
for at = 5, #ARGV do
  if note_of(redis.call('HGET', KEYS[2], ARGV[at]))[2] == worker then
    redis.call('HDEL', KEYS[2], ARGV[at])
    struck[#struck + 1] = ARGV[at]
  end
end

local found, met = redis.call('HSCAN', KEYS[2], ARGV[4], 'COUNT', 500), {}
local next_cursor, records = found[1], found[2]
for at = 1, #records, 2 do
  local name, element, by = records[at], unpack(note_of(records[at + 1]))
  local is_over = not has_lease[by]
  if is_over and #taken >= wanted then
    next_cursor = ARGV[4]
  elseif is_over and not met[name] then
    note(name, element)
  end
  met[name] = true
end
local kind = redis.call('TYPE', KEYS[1])['ok']
local find = {list = {'LINDEX', 0}, set = {'SRANDMEMBER'}, zset = {'ZREVRANGE', 0, 0}}
local remove = {list = 'LPOP', set = 'SREM', zset = 'ZREM'}
if kind ~= 'none' and not find[kind] then
  return redis.error_reply(KEYS[1] .. ' is a ' .. kind .. ', and no list or set of seeds')
end
for number = #taken + 1, wanted do
  local command = find[kind]
  local element = command and redis.call(command[1], KEYS[1], unpack(command, 2))
  if type(element) == 'table' then element = element[1] end
  if not element then break end
  -- a call that is made again has other names
  note(table.concat({worker, time[1], time[2], number}, ':'), element)
  if kind == 'list' then redis.call('LPOP', KEYS[1])
  else redis.call(remove[kind], KEYS[1], element) end
end
local left = redis.call('EXISTS', KEYS[1]) + redis.call('HLEN', KEYS[2])
if left == 0 then redis.call('DEL', KEYS[3]) end
return {taken, left, next_cursor, struck}
