-- KEYS: the filter's header.
-- ARGV: cursor.
-- Returns {next cursor, requests that are not due, how many of them cannot be read}.

-- include key
-- include readable

local found, bad = redis.call('ZSCAN', key('later'), ARGV[1], 'COUNT', 500), 0
for at = 1, #found[2], 2 do
  local entry = found[2][at]:match('^%Z*%z%Z*%z(.*)$', 5)
  if not entry or not is_readable(entry) then bad = bad + 1 end
end
return {found[1], #found[2] / 2, bad}
