-- Deletes a shard or the header of this filter; leaves that of another one.
-- KEYS: state, and the strings of all layers that any filter may have; or the header.
-- ARGV: a field of the first key; its value, or '' for any.
-- Returns how many keys were deleted.

if ARGV[2] ~= '' and redis.call('HGET', KEYS[1], ARGV[1]) ~= ARGV[2] then return 0 end
return redis.call('UNLINK', unpack(KEYS))
