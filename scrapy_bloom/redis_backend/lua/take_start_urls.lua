-- Takes seeds from a list and notes each beside it until it was pushed into the crawl.
-- KEYS: the list, set or sorted set of seeds; the hash of taken ones: name → end of the note (ms),
-- seed.
-- ARGV: how many are wanted; how long a note lasts (ms); a name for this call; the cursor in the
-- hash, of which a call reads some hundred.
-- Returns {{name, seed} of each, how many are left (0, or more than 0), next cursor}.

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local wanted, taken = tonumber(ARGV[1]), {}
local function keep(name, element)
  redis.call('HSET', KEYS[2], name, cmsgpack.pack({now + ARGV[2], element}))
end
local function note(name, element)
  keep(name, element)
  taken[#taken + 1] = {name, element}
end
local found, met = redis.call('HSCAN', KEYS[2], ARGV[4], 'COUNT', 500), {}
local next_cursor, records = found[1], found[2]
for at = 1, #records, 2 do
  local name, till, element = records[at], unpack(cmsgpack.unpack(records[at + 1]))
  if till < now and #taken >= wanted then
    next_cursor = ARGV[4]
  elseif till < now and not met[name] then
    note(name, element)
  elseif till > now + ARGV[2] then
    keep(name, element)  -- by a clock that was ahead
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
  note(ARGV[3] .. ':' .. number, element)
  if kind == 'list' then redis.call('LPOP', KEYS[1])
  else redis.call(remove[kind], KEYS[1], element) end
end
return {taken, redis.call('EXISTS', KEYS[1]) + redis.call('HLEN', KEYS[2]), next_cursor}
