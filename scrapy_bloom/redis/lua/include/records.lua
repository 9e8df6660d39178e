-- Returns the table that was packed, nil where that cannot be read.
local function unpacked(packed)
  local is_packed, record = pcall(cmsgpack.unpack, packed or '')
  return is_packed and type(record) == 'table' and record or nil
end

-- Tells whether text may be a priority, which others are compared with.
local function is_priority(text)
  return type(text) == 'string' and #text < 20 and text:find('^%-?%d+$') ~= nil
end

-- Returns the record of a request, nil where that cannot be read.
local function record_of(packed)
  local record = unpacked(packed)
  if record and is_priority(record[1]) and type(record[2]) == 'string'
      and type(record[3]) == 'string' then return record end
end

-- Returns a hold, one that is over where that cannot be read: see include/later.lua.
local function hold_in(packed)
  local hold = unpacked(packed) or {}
  for at, kind in ipairs({'number', 'number', 'number', 'table'}) do
    if type(hold[at]) ~= kind then return {0, 0, 0, {}} end
  end
  return hold
end
