-- Notes what is pending in a crawl that had no budget, since the round fetches that, too.
-- KEYS: the filter's header.
-- ARGV: slots, each with a number of requests.
-- Does nothing in a crawl with a budget.

-- include key

if (redis.call('HGET', key('crawl'), 'budget') or '{}') ~= '{}' then return end
redis.call('UNLINK', key('counted:0'), key('counted:1'))
for at = 1, #ARGV, 2 do redis.call('HSET', key('counted:0'), ARGV[at], ARGV[at + 1]) end
