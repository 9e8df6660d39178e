-- Reads a piece of a place.
-- KEYS: the filter's header.
-- ARGV: cursor, 0 at first, or -1 to read a list or `later` from the end on; place:
-- `pending:PRIORITY:NAME`, `lobby:PRIORITY`, `slots:PRIORITY`, `capped:SLOT` or `quarantined`, which are
-- lists; `later`, `capped`, `parked` without the lists of dead slots, or `dead` for these; `failed`,
-- `claims:WORKER` or `holds`, which are hashes; about how many; '1' to leave out entries and details;
-- 'count' to count what the lists have that a piece of `slots:PRIORITY`, `lobby:PRIORITY`, `parked`,
-- `dead` or `capped` names.
-- Returns {next cursor, 0 at the end; elements}. One may come twice. Behind each are: in `later` in how
-- many ms it is due; in `holds` for how long the slot is held (ms, or inf) as text, and how many times
-- in a row; for a record priority, slot and entry, and for a failed one reason, attempts, worker, when
-- (ms), details and claim, none if it cannot be read. Of lists {next cursor, {name, its requests, name,
-- …}, bytes of their keys or nil}: an entry of a lobby has the name of its slot, and counts as 1.

-- include key
-- include now
-- include records
-- include slice
-- include weigh

local kind, rest = ARGV[2]:match('^(%a+):?(.*)$')
local name, most = key(kind == 'dead' and 'parked' or ARGV[2]), tonumber(ARGV[3])
local kinds = kind == 'failed' and {'string', 'number', 'string', 'number', 'string'} or {}
local function parts_of(packed, field)
  local record = record_of(packed)
  for at, what in ipairs(kinds) do
    if record and type(record[3 + at]) ~= what then record = nil end
  end
  if not record then return {} end
  local parts = {unpack(record, 1, 3 + #kinds)}
  if ARGV[4] == '1' then parts[3], parts[8] = '', kinds[5] and '' end
  if kinds[5] then parts[9] = tonumber(record[9] or field) or 0 end
  return parts
end
local function counts_of(names)
  local counts, before = {}, kind == 'capped' and 'capped:' or 'pending:' .. (rest == '' and '' or rest .. ':')
  local function add(named)
    local list = key(before .. named)
    counts[#counts + 1], counts[#counts + 2] = named, redis.call('LLEN', list)
    weigh(list)
    return list
  end
  for _, named in ipairs(names) do
    local slot = named:match('^%Z*')
    if kind == 'lobby' and #named > #slot + 1 then
      counts[#counts + 1], counts[#counts + 2] = slot, 1
    elseif named == slot or kind == 'lobby' then add(slot)
    elseif redis.call('LPOS', add(named), '') then
      counts[#counts] = counts[#counts] - 1
      add(slot)
    end
  end
  return counts
end
if kind == 'failed' or kind == 'claims' or kind == 'holds' then
  local found = redis.call('HSCAN', name, ARGV[1], 'COUNT', most)
  for at = 2, #found[2], 2 do
    local field, packed = found[2][at - 1], found[2][at]
    if kind == 'holds' then
      local hold = hold_in(packed)
      found[2][at] = {tostring(hold[1] - now), hold[2]}
    else
      found[2][at] = parts_of(packed, field)
    end
  end
  return found
end
local first = tonumber(ARGV[1])
local last, following = first + most - 1, first + most
if first < 0 then first, last, following = first - most + 1, first, first - most end
local elements, width = {}, kind == 'later' and 2 or 1
if kind == 'later' then
  local back = tonumber(redis.call('HGET', key('crawl'), 'back') or '') or 0
  elements = redis.call('ZRANGE', name, first, last, 'WITHSCORES')
  for at = 2, #elements, 2 do elements[at] = math.max(0, elements[at] - now - back) end
elseif rest == '' and (kind == 'parked' or kind == 'dead') then
  local from, to = unpack(kind == 'dead' and {'-inf', '(0'} or {0, '+inf'})
  elements = redis.call('ZRANGEBYSCORE', name, from, to, 'LIMIT', first, most)
elseif rest == '' and kind ~= 'quarantined' then
  elements = redis.call('ZRANGE', name, first, last)
else
  elements = slice(name, first, last)
end
if #elements < width * most then following = 0 end
if ARGV[4] == 'count' then
  if first == 0 and rest ~= '' then weigh(name) end
  return {following, counts_of(elements), bytes}
end
for at = kind == 'quarantined' and #elements or 0, 1, -1 do
  elements[2 * at], elements[2 * at - 1] = parts_of(elements[at]), elements[at]
end
return {following, elements}
