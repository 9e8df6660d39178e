-- Returns the table that was packed, nil where that cannot be read.
local function unpacked(packed)
  local is_packed, record = pcall(cmsgpack.unpack, packed or '')
  return is_packed and type(record) == 'table' and record or nil
end
