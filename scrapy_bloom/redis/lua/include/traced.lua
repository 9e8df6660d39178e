local name, server = '', redis
local redis = setmetatable({call = function(...)
  name = select(2, ...) or name
  return server.call(...)
end}, {__index = server})
local is_done, answer = pcall(function()
-- the script
end)
if is_done then return answer end
return server.error_reply(name .. ': ' .. tostring(type(answer) == 'table' and answer.err or answer))
