-- KEYS: the set of all slices, a slice.
-- ARGV: seconds until the slice expires, or 0; keys.

redis.call('SADD', KEYS[1], KEYS[2])
redis.call('SADD', KEYS[2], unpack(ARGV, 2))
if ARGV[1] ~= '0' then redis.call('EXPIRE', KEYS[2], ARGV[1]) end
return 1
