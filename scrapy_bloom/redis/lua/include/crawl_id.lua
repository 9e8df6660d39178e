-- The id of the crawl beside the filter of a generation: see layout.py.
local function crawl_id(generation) return '1:' .. generation end
