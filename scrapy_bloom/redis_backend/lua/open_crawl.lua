-- Opens a crawl: makes it if there is none, takes over one of version 0.2.0 without living workers,
-- and begins a new round of one that is over. Changes nothing for another spider.
-- KEYS: the filter's header.
-- ARGV: generation, lease (ms), round, spider or '', '1' if any spider may have the crawl.
-- Returns {id, lease, round, start_done, over, workers, workers whose lease has not run out, the
-- spider of the crawl until now, requests that are not due, in how many ms the next of them is or
-- '', slots that are held, 1 if this call began a round}. The id is '' where there are requests and no
-- crawl: it had the dictionaries that they need.

-- include crawl_id
-- include count_held

local name = KEYS[1] .. ':crawl'
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local begins = 0
local function told()
  local found = redis.call('HMGET', name, 'id', 'lease', 'round', 'start_done', 'over')
  found[6] = redis.call('ZCARD', KEYS[1] .. ':workers')
  found[7] = #redis.call('ZRANGEBYSCORE', KEYS[1] .. ':workers', now, '+inf')
  found[8] = redis.call('HGET', name, 'spider') or ''
  found[9] = redis.call('ZCARD', KEYS[1] .. ':later')
  local due = redis.call('ZRANGE', KEYS[1] .. ':later', 0, 0, 'WITHSCORES')[2]
  found[10] = due and math.max(0, due - now) or ''
  found[11] = count_held(KEYS[1] .. ':holds', now)
  found[12] = begins
  return found
end
local found, id = told(), crawl_id(ARGV[1])
if ARGV[4] ~= '' and found[8] ~= '' and found[8] ~= ARGV[4] and ARGV[5] == '' then return found end
if found[1] == ARGV[1] and found[7] == 0 then
  for _, each in ipairs(redis.call('ZRANGE', KEYS[1] .. ':workers', 0, -1)) do
    redis.call('SADD', KEYS[1] .. ':busy', each)
  end
  redis.call('HSET', name, 'id', id)
  found[1] = id
end
if not found[1] then
  local names = {}
  for _, each in ipairs({'priorities', 'alone', 'failed', 'later', 'parked'}) do
    names[#names + 1] = KEYS[1] .. ':' .. each
  end
  if redis.call('EXISTS', unpack(names)) > 0 then
    found[1] = ''
    return found
  end
  redis.call('HSET', name, 'id', id, 'lease', ARGV[2], 'round', ARGV[3],
    'start_done', '', 'over', '', 'heard', now, 'began', now)
  begins = 1
elseif found[1] == id then
  if found[6] == 0 and found[2] ~= ARGV[2] then redis.call('HSET', name, 'lease', ARGV[2]) end
  if ARGV[3] ~= '' and found[3] ~= ARGV[3] and found[5] == '1' then
    -- the marks first: else an aborted script leaves a round without its start requests
    redis.call('UNLINK', KEYS[1] .. ':start')
    redis.call('HSET', name, 'round', ARGV[3], 'start_done', '', 'over', '')
    begins = 1
  end
end
found = told()
if found[1] == id and found[2] == ARGV[2] and ARGV[4] ~= '' then
  redis.call('HSET', name, 'spider', ARGV[4])
end
return found
