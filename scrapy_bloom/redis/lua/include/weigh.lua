-- `weigh` adds the memory of a key to `bytes`; `unknown` is true where the user may not ask.
local unknown, bytes = false, 0
local function weigh(name)
  local found = redis.pcall('MEMORY', 'USAGE', name)
  -- the user may not have the right
  if type(found) == 'table' and found.err then unknown = true else bytes = bytes + (found or 0) end
end
