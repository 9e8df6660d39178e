-- include records
-- Returns how many slots are held at `now`; more than 1,000 are counted with those whose hold is over.
local function count_held(holds, now)
  local held = redis.call('HLEN', holds)
  if held > 1000 then return held end
  held = 0
  local all = redis.call('HGETALL', holds)  -- workers have no right to HVALS
  for at = 2, #all, 2 do
    if hold_in(all[at])[1] > now then held = held + 1 end
  end
  return held
end
