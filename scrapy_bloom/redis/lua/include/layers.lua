-- Returns the layers of a shard, and the keys in the newest one, as numbers. What no filter has is an
-- error: see MOST_LAYERS of layout.py.
local function layers_of(state, layers, count)
  layers, count = tonumber(layers or ''), tonumber(count or '')
  if layers and count and layers >= 1 and layers <= 64 and layers % 1 == 0
      and count >= 0 and count % 1 == 0 and count < 2 ^ 53 then
    return layers, count
  end
  error(state .. ' has no layers or no count')
end
