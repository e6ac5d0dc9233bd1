-- When the oldest entry that nobody has fetched was published.
--   KEYS   streams
--   ARGV   group
--   gives  for each stream ms since the epoch by this server's clock, or 0 where everything was fetched
-- Reads only. The id of an entry begins with the time at which it was added.
local found = {}
for i, stream in ipairs(KEYS) do
  found[i] = 0
  local groups = redis.pcall('XINFO', 'GROUPS', stream)
  for _, group in ipairs(groups.err and {} or groups) do
    local facts = {}
    for at = 1, #group, 2 do facts[group[at]] = group[at + 1] end
    if facts['name'] == ARGV[1] then
      local waiting = redis.call('XRANGE', stream, '(' .. facts['last-delivered-id'], '+', 'COUNT', 1)
      if waiting[1] then found[i] = tonumber(string.match(waiting[1][1], '^%d+')) end
    end
  end
end
return found
