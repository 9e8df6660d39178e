-- `weigh` adds the memory of a key to `bytes`, which is false where the user may not ask.
local bytes = 0
local function weigh(name)
  local found = redis.pcall('MEMORY', 'USAGE', name)
  bytes = not (type(found) == 'table' and found.err) and bytes and bytes + (found or 0)
end
