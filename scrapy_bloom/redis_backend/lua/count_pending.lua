-- Notes what is pending in a crawl that had no budget, since the round fetches that, too.
-- KEYS: the filter's header.
-- ARGV: '1' at first; slots, each with a number of requests.
-- Does nothing in a crawl with a budget.

-- include key

if (redis.call('HGET', key('crawl'), 'budget') or '{}') ~= '{}' then return end
if ARGV[1] == '1' then redis.call('UNLINK', key('counted:0'), key('counted:1')) end
for at = 2, #ARGV, 2 do redis.call('HSET', key('counted:0'), ARGV[at], ARGV[at + 1]) end
