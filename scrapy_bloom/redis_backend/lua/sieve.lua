-- Looks at requests that the caller has read: drops some, and moves the others to the end of their
-- list, where that is a list. What workers have taken meanwhile is passed over.
-- KEYS: the filter's header.
-- ARGV: `later`, `quarantined`, `lobby:PRIORITY` or `pending:PRIORITY:NAME`; then for each element as it is
-- there: the element; priority; slot; entry; what becomes of it: '0' or '3' to leave it, '1' to drop
-- it, '2' to let it fail; and for that its page, attempts and details as JSON.
-- Returns for each at which it has looked what became of it, as digits; -1 if there is no crawl of
-- this version.
--
-- The first elements of a list are compared with those that were read: one that workers have put
-- there meanwhile ends the call. A mark in a lobby, or before a slot's own list, lets that list join
-- its ring now: see include/put.lua.

-- include in_crawl
-- include put
-- include count_less

local list, priority, named = key(ARGV[1]), ARGV[1]:match('^%a+:([^:]*):?(.*)$')
-- include now
local known, answers = {}, {}

local function let_fail(at)
  local claim = redis.call('HINCRBY', key('crawl'), 'claims', 1)
  redis.call('HSET', key('failed'), ARGV[at + 5], cmsgpack.pack({ARGV[at + 1], ARGV[at + 2],
    ARGV[at + 3], 'dropped', tonumber(ARGV[at + 6]), '', now, ARGV[at + 7], tostring(claim)}))
end

local function drop(at, command, ...)
  count_less(1, #ARGV[at + 3])
  if ARGV[at + 4] == '2' then let_fail(at) end
  redis.call(command, list, ...)
  if ARGV[1]:find('^lobby:') then count_few(priority, ARGV[at + 2], -1) end
end

for at = 2, #ARGV, 8 do
  if ARGV[1] ~= 'later' then
    known[ARGV[at]] = at
  elseif redis.call('ZSCORE', list, ARGV[at]) then
    if ARGV[at + 4] == '1' or ARGV[at + 4] == '2' then drop(at, 'ZREM', ARGV[at]) end
    answers[#answers + 1] = ARGV[at + 4]
  end
end
if ARGV[1] == 'later' then return table.concat(answers) end

for _ = 2, #ARGV, 8 do
  local element = redis.call('LINDEX', list, 0)
  local at = element and known[element]
  if not at then break end
  local entry, verdict = ARGV[at + 3], ARGV[at + 4]
  if entry == '' then
    if has_list(priority, ARGV[at + 2]) then join_ring(priority, ARGV[at + 2]) end
    redis.call('LPOP', list)
  elseif verdict == '1' or verdict == '2' then
    drop(at, 'LPOP')
  else
    redis.call('RPUSH', list, element)
    redis.call('LPOP', list)
  end
  answers[#answers + 1] = verdict
end
if ARGV[1]:find('^pending:') then forget_list(priority, named) end
return table.concat(answers)
