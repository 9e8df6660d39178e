-- KEYS: the filter's header.
-- Returns how many quarantined requests cannot be read.

-- include key
-- include readable
-- include unpacked

local bad = 0
for _, packed in ipairs(redis.call('LRANGE', key('alone'), 0, -1)) do
  local entry = (unpacked(packed) or {})[3]
  if type(entry) ~= 'string' or not is_readable(entry) then bad = bad + 1 end
end
return bad
