-- KEYS: the filter's header.
-- ARGV: `failed`, `claims:WORKER`, `quarantined` or `later`; cursor; the fewest parts of a record.
-- Returns {next cursor, records, how many of them cannot be read}.

-- include key
-- include readable
-- include unpacked

local name, following, records, bad = key(ARGV[1]), 0, {}, 0
if ARGV[1] == 'quarantined' then
  for _, packed in ipairs(redis.call('LRANGE', name, 0, -1)) do
    records[#records + 1] = unpacked(packed) or {}
  end
else
  local is_later = ARGV[1] == 'later'
  local found = redis.call(is_later and 'ZSCAN' or 'HSCAN', name, ARGV[2], 'COUNT', 100)
  following = found[1]
  for at = 1, #found[2], 2 do
    records[#records + 1] = is_later and {found[2][at]:match('^(%Z*)%z(%Z*)%z(.*)$', 5)}
      or unpacked(found[2][at + 1]) or {}
  end
end
for _, record in ipairs(records) do
  if type(record[3]) ~= 'string' or #record < tonumber(ARGV[3])
      or not (record[4] == 'unserializable' or is_readable(record[3])) then
    bad = bad + 1
  end
end
return {following, #records, bad}
