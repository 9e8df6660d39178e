-- Reads the header of a filter, and makes it if there is none.
-- KEYS: header.
-- ARGV: the text of a new one, or '' to make none; 'loading' or ''.
-- Returns {type of the key, text of the header or '', state}; state: '1' if all shards are made,
-- 'loading', or ''.

local kind = redis.call('TYPE', KEYS[1])['ok']
if kind == 'hash' then
  local found = redis.call('HMGET', KEYS[1], 'header', 'ready')
  return {kind, found[1] or '', found[2] or ''}
end
if kind ~= 'none' or ARGV[1] == '' then return {kind, '', ''} end
redis.call('HSET', KEYS[1], 'header', ARGV[1], 'ready', ARGV[2])
return {'hash', ARGV[1], ARGV[2]}
