-- KEYS: the filter's header.
-- ARGV: priority, first and last place in its ring and in its lobby; or `parked` or `capped`, and the
-- places there.
-- Returns {slot, its requests, slot, …, bytes of their keys or -1}. The slots of parked lists come as
-- priority, ':' and slot; those of capped requests in the order in which each got its first one.

-- include key
-- include weigh
-- include slice

local counts = {}
local function add(slot, count)
  counts[#counts + 1], counts[#counts + 2] = slot, count
end
local is_set = ARGV[1] == 'parked' or ARGV[1] == 'capped'
local before = ARGV[1] == 'capped' and 'capped:' or is_set and 'pending:' or 'pending:' .. ARGV[1] .. ':'
local function add_list(slot, named)
  local list = key(before .. named)
  add(slot, redis.call('LLEN', list))
  weigh(list)
  return list
end
local names = is_set and redis.call('ZRANGE', key(ARGV[1]), ARGV[2], ARGV[3])
  or slice(key('slots:' .. ARGV[1]), ARGV[2], ARGV[3])
for _, named in ipairs(names) do
  local slot = named:match('^%Z*')
  local list = add_list(slot, named)
  if named ~= slot and redis.call('LINDEX', list, -1) == '' then
    add(slot, -1)
    add_list(slot, slot)
  end
end
if is_set then return {counts, unknown and -1 or bytes} end
for _, element in ipairs(slice(key('lobby:' .. ARGV[1]), ARGV[2], ARGV[3])) do
  local slot = element:match('^%Z*')
  if #element > #slot + 1 then add(slot, 1) else add_list(slot, slot) end
end
if ARGV[2] == '0' then
  weigh(key('slots:' .. ARGV[1]))
  weigh(key('lobby:' .. ARGV[1]))
end
return {counts, unknown and -1 or bytes}
