-- KEYS: the filter's header.
-- ARGV: a list, first, last.
-- Returns {entries, how many of them cannot be read}.

-- include key
-- include readable

local entries, bad = redis.call('LRANGE', key(ARGV[1]), ARGV[2], ARGV[3]), 0
for _, entry in ipairs(entries) do
  if not is_readable(entry) then bad = bad + 1 end
end
return {#entries, bad}
