-- KEYS: header.
-- ARGV: its text.
-- Returns 0 if the header is that of another filter.

if redis.call('HGET', KEYS[1], 'header') ~= ARGV[1] then return 0 end
return redis.call('UNLINK', KEYS[1])
