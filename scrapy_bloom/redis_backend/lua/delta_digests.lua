-- KEYS: the digests of pages.
-- ARGV: a key, its digest, and so on.

redis.call('HSET', KEYS[1], unpack(ARGV))
return 1
