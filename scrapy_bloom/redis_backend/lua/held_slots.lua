-- KEYS: the filter's header.
-- ARGV: cursor.
-- Returns {next cursor, {slot, how long it is held (ms, or inf) as text, …}}.

-- include key
-- include records

-- include now
local found, held = redis.call('HSCAN', key('holds'), ARGV[1], 'COUNT', 100), {}
for at = 1, #found[2], 2 do
  local left = hold_in(found[2][at + 1])[1] - now
  if left > 0 then held[#held + 1], held[#held + 2] = found[2][at], tostring(left) end
end
return {found[1], held}
