-- KEYS: the filter's header.
-- ARGV: `claims:WORKER`, `capped:SLOT`, `lobby:PRIORITY` or `pending:PRIORITY:NAME`.
-- Returns 1 if something is there that no worker finds.

-- include key

if redis.call('EXISTS', key(ARGV[1])) == 0 then return 0 end
local kind, named = ARGV[1]:match('^(%a+):(.*)$')
local names = {claims = 'workers', capped = 'capped', lobby = 'priorities', pending = 'parked'}
if redis.call('ZSCORE', key(names[kind]), named) then return 0 end
local priority, listed = named:match('^([^:]*):?(.*)$')
if kind == 'pending' and redis.call('ZSCORE', key('priorities'), priority) then
  for _, each in ipairs(redis.call('LRANGE', key('slots:' .. priority), 0, -1)) do
    if each == listed then return 0 end
  end
end
return 1
