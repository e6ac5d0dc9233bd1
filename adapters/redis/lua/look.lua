-- Breakers as people see them. Reads only, however often it is asked.
--   KEYS   1 all breakers (sorted set)   2 the beginning of the keys of breakers
--   ARGV   1 now in ms or ''  2 window in ms  3 bucket in ms  4 how many at most
--   gives  now in ms, then for each: member, opened in ms or 0, until in ms or 0, probe until in ms or 0, calls, failures
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local first = math.floor((now - tonumber(ARGV[2])) / tonumber(ARGV[3])) + 1
local found = {now}
for _, member in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, tonumber(ARGV[4]) - 1)) do
  local facts, calls, failures = {}, 0, 0
  local kept = redis.call('HGETALL', KEYS[2] .. member)
  for at = 1, #kept, 2 do
    local bucket = tonumber(string.match(kept[at], '^[nf](%d+)$') or '')
    if not bucket then facts[kept[at]] = tonumber(kept[at + 1])
    elseif bucket >= first and string.sub(kept[at], 1, 1) == 'n' then calls = calls + tonumber(kept[at + 1])
    elseif bucket >= first then failures = failures + tonumber(kept[at + 1]) end
  end
  found[#found + 1] = {member, facts['opened'] or 0, facts['until'] or 0, facts['probe_until'] or 0, calls, failures}
end
return found
