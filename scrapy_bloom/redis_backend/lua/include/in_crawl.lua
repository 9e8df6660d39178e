-- The beginning of each script of a command that changes a crawl: ends it where none of this version
-- is.
-- include key
-- include crawl_id
if (redis.call('HGET', key('crawl'), 'id') or ''):sub(1, 2) ~= crawl_id('') then return -1 end
