-- KEYS: the filter's header.
-- ARGV: the records, which are 'quarantined', 'later', or 'claims:' and a worker; a cursor, 0 at first;
-- '1' for what is due last of 'later', and the elements themselves.
-- Returns {next cursor, 0 at the end; for each record {priority, slot, payload, in how many ms it is
-- due or '', its element or ''}}, without those that cannot be read; one may come twice.

-- include key
-- include slice
-- include unpacked
-- include now

local name, first, records, due, elements = key(ARGV[1]), tonumber(ARGV[2]), {}, {}, {}
local following = 0
if ARGV[1]:find('^claims:') then
  local found = redis.call('HSCAN', name, ARGV[2], 'COUNT', 100)
  following = found[1]
  for at = 2, #found[2], 2 do records[#records + 1] = unpacked(found[2][at]) or {} end
elseif ARGV[1] == 'later' then
  local from, to = first, first + 99
  if ARGV[3] then from, to = -first - 100, -first - 1 end
  local found = redis.call('ZRANGE', name, from, to, 'WITHSCORES')
  local back = tonumber(redis.call('HGET', key('crawl'), 'back') or '') or 0
  for at = 1, #found, 2 do
    -- behind the serial: see include/later.lua
    records[#records + 1] = {found[at]:match('^(%Z*)%z(%Z*)%z(.*)$', 5)}
    due[#records], elements[#records] = math.max(0, found[at + 1] - now - back), found[at]
  end
else
  for _, packed in ipairs(slice(name, first, first + 99)) do
    records[#records + 1] = unpacked(packed) or {}
    elements[#records] = packed
  end
end
if following == 0 and #records == 100 then following = first + 100 end
local told = {}
for at, record in ipairs(records) do
  if type(record[3]) == 'string' then
    told[#told + 1] = {record[1], record[2], record[3]:sub(2), due[at] or '',
      ARGV[3] and elements[at] or ''}
  end
end
return {following, told}
