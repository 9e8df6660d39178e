-- `put` pushes an entry onto its list; `added` and `added_bytes` count. Needs `key`.
local added, added_bytes = 0, 0
local function put(command, priority, slot, entry)
  local list = key('pending:' .. priority .. ':' .. slot)
  if redis.call('EXISTS', list) == 0 then
    redis.call('ZADD', key('priorities'), priority, priority)
    redis.call('LPUSH', key('slots:' .. priority), slot)
  end
  redis.call(command, list, entry)
  added, added_bytes = added + 1, added_bytes + #entry
end
