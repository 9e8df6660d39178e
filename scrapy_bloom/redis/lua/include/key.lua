-- Returns the full name of a key of the crawl.
local function key(name) return KEYS[1] .. ':' .. name end
