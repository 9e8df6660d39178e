-- KEYS: slices.
-- ARGV: a key.
-- Returns 1 if one of the slices has it.

for _, name in ipairs(KEYS) do
  if redis.call('SISMEMBER', name, ARGV[1]) == 1 then return 1 end
end
return 0
