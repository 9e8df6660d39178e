-- Tests a fingerprint in the filter, and adds it if it is new.
-- KEYS: state, the strings of all layers that the caller knows, and of the next one.
-- ARGV: generation; 'grow' (add a layer if the newest is full), 'fill' (never add one) or 'look'
-- (add nothing); the probes' positions in their block (uint16); for each string the number of the
-- block (uint32); for each string its probes, the keys that it takes, and its blocks (uint32).
-- Returns {answer, layers, keys in the newest layer}; answer: 0 new, 1 seen, 2 the shard has more
-- layers than KEYS (nothing was done), 3 gone.

-- include probe

local answer, layers, count, add = probe(KEYS[1], ARGV[1], ARGV[3], ARGV[4], ARGV[5])
if add and ARGV[2] ~= 'look' then layers, count = add(ARGV[2] == 'grow') end
return {answer, layers, count}
