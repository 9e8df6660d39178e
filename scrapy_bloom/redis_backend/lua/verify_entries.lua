-- KEYS: the filter's header.
-- ARGV: `lobby:PRIORITY`, `pending:PRIORITY:NAME` or `capped:SLOT`, first, last.
-- Returns {elements, entries among them, how many of these cannot be read, slots whose list joins
-- its ring when an element has left this list}.

-- include key
-- include readable

local elements, entries, bad, slots = redis.call('LRANGE', key(ARGV[1]), ARGV[2], ARGV[3]), 0, 0, {}
local kind, older = ARGV[1]:match('^%a+'), ARGV[1]:match('^pending:[^:]*:(%Z*)%z$')
for _, element in ipairs(elements) do
  local slot, entry = older, element
  if kind == 'lobby' then slot, entry = element:match('^(%Z*)%z(.*)$') end
  if kind == 'capped' then entry = '0' .. (element:match('^%Z*%z(.+)$') or '') end
  if slot and entry == '' then
    slots[#slots + 1] = slot
  else
    entries = entries + 1
    if not entry or not is_readable(entry) then bad = bad + 1 end
  end
end
return {#elements, entries, bad, slots}
