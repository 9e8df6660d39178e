-- KEYS: the filter's header.
-- ARGV: worker.
-- Returns how many claims it has if it is none of the crawl's workers, else 0.

-- include key

if redis.call('ZSCORE', key('workers'), ARGV[1]) then return 0 end
return redis.call('HLEN', key('claims:' .. ARGV[1]))
