-- Opens a crawl: makes it if there is none, and begins a new round of one that is over, unless capped
-- requests of it are to be asked. Changes nothing for another spider.
-- KEYS: the filter's header.
-- ARGV: generation, lease (ms), round, spider or '', '1' if any spider may have the crawl, its budget
-- as JSON or '' to leave it as it is; where it had none, and what is pending was counted, since the round
-- fetches that, too: '1', then slots, each with a number of requests.
-- Returns {id, lease, round, start_done, over, workers, workers whose lease has not run out, the
-- spider of the crawl until now, requests that are not due, in how many ms the next of them is or
-- '', slots that are held, 1 if this call began a round, the budget}. The id is '' where there are
-- requests and no crawl: it had the dictionaries that they need. The budget is not the one that was
-- asked for while other workers have a lease, and where what is pending has to be counted first.

-- include crawl_id
-- include key
-- include now
-- include waits

local name = key('crawl')
local begins = 0
local function told()
  local found = redis.call('HMGET', name, 'id', 'lease', 'round', 'start_done', 'over')
  found[6] = redis.call('ZCARD', key('workers'))
  found[7] = #redis.call('ZRANGEBYSCORE', key('workers'), now, '+inf')
  found[8] = redis.call('HGET', name, 'spider') or ''
  found[9], found[10], found[11] = waits()
  found[12] = begins
  found[13] = redis.call('HGET', name, 'budget') or '{}'
  return found
end
local function last_claim() return redis.call('HGET', name, 'claims') or 0 end
-- The counts stay, unless there is no budget any more. An aborted call leaves an unknown one.
local function set_budget(before)
  if ARGV[6] == '{}' then
    redis.call('HSET', name, 'budget', '{}', 'counts', '')
    redis.call('UNLINK', key('limits'), key('counted:0'), key('counted:1'))
    return
  end
  if before == '{}' then
    redis.call('UNLINK', key('counted:0'), key('counted:1'))
    for at = 8, #ARGV, 2 do redis.call('HSET', key('counted:0'), ARGV[at], ARGV[at + 1]) end
  end
  redis.call('HSET', name, 'budget', '?')
  redis.call('UNLINK', key('limits'))
  for slot, most in pairs(cjson.decode(ARGV[6])) do
    redis.call('HSET', key('limits'), slot, string.format('%.0f', most))
  end
  if (redis.call('HGET', name, 'counts') or '') == '' then
    redis.call('HSET', name, 'counts', 0, 'carried', last_claim())
  end
  redis.call('HSET', name, 'budget', ARGV[6])
end
local found, id = told(), crawl_id(ARGV[1])
local has_other_budget = ARGV[6] ~= '' and found[13] ~= ARGV[6]
if ARGV[4] ~= '' and found[8] ~= '' and found[8] ~= ARGV[4] and ARGV[5] == '' then return found end
if found[1] == id and found[7] > 0 and has_other_budget then return found end
if not found[1] then
  if redis.call('EXISTS', key('priorities'), key('quarantined'), key('failed'), key('later'),
      key('parked'), key('capped')) > 0 then
    found[1] = ''
    return found
  end
  redis.call('HSET', name, 'id', id, 'lease', ARGV[2], 'round', ARGV[3],
    'start_done', '', 'over', '', 'heard', now, 'began', now)
  begins = 1
elseif found[1] == id then
  if found[6] == 0 and found[2] ~= ARGV[2] then redis.call('HSET', name, 'lease', ARGV[2]) end
  local retried = redis.call('HGET', name, 'retried')
  if ARGV[3] ~= '' and found[3] ~= ARGV[3] and found[5] == '1' and not retried then
    -- the marks first: else an aborted script leaves a round without its start requests
    redis.call('UNLINK', key('start'))
    -- the counts of the last round stay beside those of this one
    local counts = redis.call('HGET', name, 'counts') or ''
    if counts ~= '' then
      counts = 1 - counts:sub(1, 1)
      redis.call('UNLINK', key('counted:' .. counts))
      counts = counts .. 'f'
    end
    redis.call('HSET', name, 'round', ARGV[3], 'start_done', '', 'over', '', 'counts', counts,
      'carried', last_claim())
    begins = 1
  end
end
found = told()
if found[1] == id and found[2] == ARGV[2] then
  if ARGV[4] ~= '' then redis.call('HSET', name, 'spider', ARGV[4]) end
  if has_other_budget and (found[13] ~= '{}' or begins == 1 or ARGV[7] == '1') then
    set_budget(found[13])
    found[13] = ARGV[6]
  end
end
return found
