-- One request of a tenant, if its minute has room for it (GCRA: requests are paid for until a moment, each with its share).
--   KEYS   1 until when they are paid for, in ms (string; expires when that is over)
--   ARGV   1 now in ms or ''  2 requests a minute
--   gives  {1 or 0, how many more at once, ms until all are there again, ms until the next one}
-- Atomic.
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + t[2] / 1000
end
local each = 60000 / tonumber(ARGV[2])
local paid = math.max(tonumber(redis.call('GET', KEYS[1]) or '') or now, now)
local after = paid + each
if after - now > 60000 + 0.001 then
  return {0, 0, math.ceil(paid - now), math.ceil(after - now - 60000)}
end
redis.call('SET', KEYS[1], string.format('%.3f', after), 'PX', math.ceil(after - now) + 1000)
return {1, math.floor((60000 - (after - now)) / each + 0.000001), math.ceil(after - now), 0}
