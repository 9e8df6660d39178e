-- KEYS: the filter's header.
-- ARGV: cursor, about how many, '1' for fields, claims and reasons alone.
-- Returns {next cursor, failed requests}; one may come twice.

-- include records

local found = redis.call('HSCAN', KEYS[1] .. ':failed', ARGV[1], 'COUNT', ARGV[2])
local told, kinds = {}, {'string', 'number', 'string', 'number', 'string'}
for at = 1, #found[2], 2 do
  local record = record_of(found[2][at + 1])
  for place, kind in ipairs(kinds) do
    if record and type(record[3 + place]) ~= kind then record = nil end
  end
  record = record or {'', '', '0', 'unreadable', 0, '', 0, ''}
  local one = {found[2][at], tonumber(record[9] or found[2][at]) or 0, record[4]}
  if ARGV[3] ~= '1' then
    one = {one[1], one[2], one[3], record[5], record[6], record[7], record[8], record[2],
      record[8] == '' and record[3]:sub(2) or ''}
  end
  told[#told + 1] = one
end
return {found[1], told}
