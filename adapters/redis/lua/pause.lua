-- The provider said 429: the whole lane waits.
--   KEYS   1 lane (hash), see reserve.lua   2 lanes of which limits are known (set)
--   ARGV   1 now in ms or ''  2 how long in ms, or -1 where the provider did not say  3 the first wait in ms  4 the longest
--          5 member of 2
--   gives  ms that are left
-- Atomic. Without a time it is the first wait, doubled with each pause in a row; the 429s of calls that were under way
-- together are one. Nothing is left to use at once afterwards.
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local paused = tonumber(redis.call('HGET', KEYS[1], 'paused') or '') or 0
local wait = tonumber(ARGV[2])
if wait < 0 then
  if paused > now then return paused - now end
  local strikes = redis.call('HINCRBY', KEYS[1], 'strikes', 1)
  wait = math.min(tonumber(ARGV[4]), tonumber(ARGV[3]) * 2 ^ math.min(20, strikes - 1))
end
local till = math.max(paused, now + math.ceil(wait))
redis.call('HSET', KEYS[1], 'paused', till)
for _, name in ipairs({'requests', 'tokens'}) do
  local level = tonumber(redis.call('HGET', KEYS[1], name) or '')
  redis.call('HSET', KEYS[1], name, level and math.min(0, level) or 0)
end
redis.call('SADD', KEYS[2], ARGV[5])
redis.call('PEXPIRE', KEYS[2], 86400000 + till - now)
redis.call('HSET', KEYS[1], 'at', till)
redis.call('PEXPIRE', KEYS[1], 86400000 + till - now)
return till - now
