-- KEYS: the filter's header.
-- ARGV: a hash, cursor, the fewest parts of a record.
-- Returns {next cursor, records, how many of them cannot be read}.

-- include key
-- include readable
-- include unpacked

local found, bad = redis.call('HSCAN', key(ARGV[1]), ARGV[2], 'COUNT', 100), 0
for at = 2, #found[2], 2 do
  local record = unpacked(found[2][at]) or {}
  if type(record[3]) ~= 'string' or #record < tonumber(ARGV[3])
      or not (record[4] == 'unserializable' or is_readable(record[3])) then
    bad = bad + 1
  end
end
return {found[1], #found[2] / 2, bad}
