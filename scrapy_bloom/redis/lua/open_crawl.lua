-- Opens a crawl: makes it if there is none, and begins a new round of one that is over, unless capped
-- requests of it are to be asked. Changes nothing for another spider.
-- KEYS: the filter's header.
-- ARGV: generation, lease (ms), round, spider or '', '1' if any spider may have the crawl, its budget
-- as JSON or '' to leave it as it is; where it had none, and what is pending was counted, since the round
-- fetches that, too: '1', then names, each with a number of requests.
-- Returns {id, lease, round, start_done, over, {workers whose lease has not run out, the spider of the
-- crawl until now, 1 if this call began a round, the budget, requests that are not due, in how many ms
-- the next of them is or '', slots that are held}}. The id is '' where there are requests and no crawl:
-- it had the dictionaries that they need. The budget is not the one that was asked for while other
-- workers have a lease, and where what is pending has to be counted first.

-- include crawl_id
-- include key
-- include now
-- include waits

local name, id, begins = key('crawl'), crawl_id(ARGV[1]), 0
local function field(of, default) return redis.call('HGET', name, of) or default end
local owner, budget = field('spider', ''), field('budget', '{}')
local living = #redis.call('ZRANGEBYSCORE', key('workers'), now, '+inf')
local has_other_budget = ARGV[6] ~= '' and budget ~= ARGV[6]
local function told()
  local found = redis.call('HMGET', name, 'id', 'lease', 'round', 'start_done', 'over')
  found[6] = {living, owner, begins, budget, waits()}
  return found
end
-- Returns the name of a slot, or that of a pattern: see include/budget.lua.
local function name_of(each)
  return each ~= '*' and each:find('[/*]') and '\0' .. each or each
end
-- Counts what is stored, as the caller has found it.
local function count_stored(place)
  for at = 8, #ARGV, 2 do redis.call('HSET', key('counted:' .. place), ARGV[at], ARGV[at + 1]) end
end
-- The counts stay, unless there is no budget any more. An aborted call leaves an unknown one.
local function set_budget()
  if ARGV[6] == '{}' then
    redis.call('HSET', name, 'budget', '{}', 'counts', '')
    redis.call('UNLINK', key('limits'), key('counted:0'), key('counted:1'))
    return
  end
  if budget == '{}' then
    redis.call('UNLINK', key('counted:0'), key('counted:1'))
    count_stored(0)
  end
  local is_read, before = pcall(cjson.decode, budget)
  local limits_of = cjson.decode(ARGV[6])
  for each in pairs(is_read and before or {}) do
    -- a pattern that comes back counts from then on
    if not limits_of[each] and name_of(each) ~= each then
      for place = 0, 1 do redis.call('HDEL', key('counted:' .. place), name_of(each)) end
    end
  end
  redis.call('HSET', name, 'budget', '?')
  redis.call('UNLINK', key('limits'))
  for each, most in pairs(limits_of) do
    redis.call('HSET', key('limits'), name_of(each), string.format('%.0f', most))
  end
  if field('counts', '') == '' then
    redis.call('HSET', name, 'counts', 0, 'carried', field('claims', 0))
  end
  redis.call('HSET', name, 'budget', ARGV[6])
end
local found = told()
if ARGV[4] ~= '' and owner ~= '' and owner ~= ARGV[4] and ARGV[5] == '' then return found end
if found[1] == id and living > 0 and has_other_budget then return found end
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
  if redis.call('ZCARD', key('workers')) == 0 and found[2] ~= ARGV[2] then
    redis.call('HSET', name, 'lease', ARGV[2])
  end
  if ARGV[3] ~= '' and found[3] ~= ARGV[3] and found[5] == '1' and not field('retried') then
    -- the marks first: else an aborted script leaves a round without its start requests
    redis.call('UNLINK', key('start'))
    -- the counts of the last round stay beside those of this one
    local counts = field('counts', '')
    if counts ~= '' then
      counts = 1 - counts:sub(1, 1)
      redis.call('UNLINK', key('counted:' .. counts))
      counts = counts .. 'f'
    end
    redis.call('HSET', name, 'round', ARGV[3], 'start_done', '', 'over', '', 'counts', counts,
      'carried', field('claims', 0))
    begins = 1
  end
end
found = told()
if found[1] == id and found[2] == ARGV[2] then
  if ARGV[4] ~= '' then redis.call('HSET', name, 'spider', ARGV[4]) end
  if has_other_budget and (budget ~= '{}' or begins == 1 or ARGV[7] == '1') then
    set_budget()
    found[6][4] = ARGV[6]
  elseif ARGV[7] == '1' and living == 0 and not has_other_budget then
    -- a round that has begun while requests wait for dead hosts
    count_stored(field('counts', ''):sub(1, 1))
  end
end
return found
