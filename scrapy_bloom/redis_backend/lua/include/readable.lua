-- `is_readable` tells whether an entry is a digit and a payload, and the crawl has the dictionary
-- that the payload needs. Needs `key`.
local has_dictionary = {}
local function is_readable(entry)
  if not entry:find('^%d\2') then return entry:find('^%d.') ~= nil end
  if #entry < 4 then return false end
  local id = ('%02x%02x'):format(entry:byte(3, 4))
  if has_dictionary[id] == nil then
    has_dictionary[id] = redis.call('HGET', key('crawl'), 'dictionary:' .. id) ~= false
  end
  return has_dictionary[id]
end
