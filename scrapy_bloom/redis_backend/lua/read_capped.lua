-- KEYS: the filter's header.
-- ARGV: slot, first, last.
-- Returns requests of the slot that are over the budget: priority, NUL, payload.

-- include key
-- include slice

return slice(key('capped:' .. ARGV[1]), ARGV[2], ARGV[3])
