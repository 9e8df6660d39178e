-- The beginning of each script of a command that changes a crawl: it ends without one of this version.
-- include key
-- include crawl_id

local id = redis.call('HGET', key('crawl'), 'id') or ''
if id:sub(1, 2) ~= crawl_id('') then return -1 end
-- include now
