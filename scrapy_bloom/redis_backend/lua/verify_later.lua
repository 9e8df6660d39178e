-- KEYS: the filter's header.
-- ARGV: cursor.
-- Returns {next cursor, requests that are not due, how many of them cannot be read}.

-- include key
-- include readable

local found, bad = redis.call('ZSCAN', key('later'), ARGV[1], 'COUNT', 500), 0
for at = 1, #found[2], 2 do
  local is_packed, record = pcall(cmsgpack.unpack, found[2][at]:sub(5))
  if not is_packed or type(record) ~= 'table' or type(record[3]) ~= 'string'
      or not is_readable(record[3]) then
    bad = bad + 1
  end
end
return {found[1], #found[2] / 2, bad}
