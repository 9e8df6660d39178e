-- Reads the header of a filter, and makes it if there is none, or marks the filter as ready.
-- KEYS: header.
-- ARGV: the text of a header, or '' to read only; 'loading' or '' for a new one, '1' to mark the filter
-- with this text, whose shards are all made.
-- Returns {type of the key, text of the header or '', state}; state: '1' if the filter was ready,
-- 'loading', or ''.

local kind = redis.call('TYPE', KEYS[1])['ok']
if kind == 'hash' then
  local found = redis.call('HMGET', KEYS[1], 'header', 'ready')
  if ARGV[2] == '1' and found[1] == ARGV[1] then redis.call('HSET', KEYS[1], 'ready', 1) end
  return {kind, found[1] or '', found[2] or ''}
end
if kind ~= 'none' or ARGV[1] == '' or ARGV[2] == '1' then return {kind, '', ''} end
redis.call('HSET', KEYS[1], 'header', ARGV[1], 'ready', ARGV[2])
return {'hash', ARGV[1], ARGV[2]}
