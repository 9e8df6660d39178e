-- Deletes a shard of this filter; leaves that of another one.
-- KEYS: state, the strings of all layers that any filter may have.
-- ARGV: generation, or '' for any.
-- Returns how many keys were deleted.

if ARGV[1] ~= '' and redis.call('HGET', KEYS[1], 'generation') ~= ARGV[1] then return 0 end
return redis.call('UNLINK', unpack(KEYS))
