-- Looks at requests over the budget from the first on: makes them pending as far as the budget has
-- room, drops them, or moves them to the end.
-- KEYS: the filter's header.
-- ARGV: slot; how many to look at; what becomes of each: '1' to drop it, '2' to make it pending, or
-- '' and then for each that the caller has read: the request; '0' to leave it, '1' or '2'.
-- Returns what became of those at which it has looked, as digits, '1' for one that cannot be read,
-- which has failed: fewer than wanted at the end, at one that was not read, or where the budget has
-- no room. -1 if there is no crawl.

-- include in_crawl
-- include put
-- include records

local slot, list = ARGV[1], key('capped:' .. ARGV[1])
-- include now
local counts = redis.call('HGET', key('crawl'), 'counts')

-- include budget

local verdicts, answers = {}, {}
for at = 4, #ARGV, 2 do verdicts[ARGV[at]] = ARGV[at + 1] end
for _ = 1, ARGV[2] do
  local element = redis.call('LINDEX', list, 0)
  local verdict = element and (ARGV[3] ~= '' and ARGV[3] or verdicts[element])
  if not verdict then break end
  if verdict == '2' then
    local priority, payload = element:match('^(%Z*)%z(.*)$')
    if not is_priority(priority) then
      redis.call('HSET', key('failed'), 'capped:' .. redis.sha1hex(element), element)
      verdict = '1'
    elseif room_for_retry(slot) <= 0 then
      break
    else
      count(slot)
      redis.call('HSET', key('crawl'), 'over', '')
      put('RPUSH', priority, slot, '0' .. payload)
    end
  elseif verdict == '0' then
    redis.call('RPUSH', list, element)
  end
  redis.call('LPOP', list)
  answers[#answers + 1] = verdict
end
if redis.call('EXISTS', list) == 0 then redis.call('ZREM', key('capped'), slot) end
if added > 0 then
  redis.call('HINCRBY', key('crawl'), 'waiting', added)
  redis.call('HINCRBY', key('crawl'), 'waiting_bytes', added_bytes)
end
return table.concat(answers)
