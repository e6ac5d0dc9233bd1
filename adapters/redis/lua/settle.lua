-- A model call ended: gives back the tokens it did not use, and takes in what the provider said of its limits.
--   KEYS   1 lane (hash), see reserve.lua   2 lanes of which limits are known (set)
--   ARGV   1 tokens reserved  2 tokens used, or -1 where nobody knows  3, 4 limit and rest of requests, or -1
--          5, 6 limit and rest of tokens, or -1  7 was it answered: 1 or 0  8 member of 2
--   gives  0
-- Atomic. Tokens that come back are not cut off at the hundredth: they were paid for by waiting. What the provider has
-- left is believed where it is less than what we think.
local facts = redis.call('HMGET', KEYS[1], 'requests', 'tokens')
local level_r, level_t = tonumber(facts[1] or ''), tonumber(facts[2] or '')
if level_t and tonumber(ARGV[2]) >= 0 then level_t = level_t + tonumber(ARGV[1]) - tonumber(ARGV[2]) end
if level_r and tonumber(ARGV[4]) >= 0 then level_r = math.min(level_r, tonumber(ARGV[4])) end
if level_t and tonumber(ARGV[6]) >= 0 then level_t = math.min(level_t, tonumber(ARGV[6])) end
if level_r then redis.call('HSET', KEYS[1], 'requests', level_r) end
if level_t then redis.call('HSET', KEYS[1], 'tokens', level_t) end
if tonumber(ARGV[3]) > 0 then redis.call('HSET', KEYS[1], 'limit_requests', ARGV[3]) end
if tonumber(ARGV[5]) > 0 then redis.call('HSET', KEYS[1], 'limit_tokens', ARGV[5]) end
if ARGV[7] == '1' then
  redis.call('HDEL', KEYS[1], 'strikes')
  local mean = tonumber(redis.call('HGET', KEYS[1], 'mean') or '') or tonumber(ARGV[2])
  redis.call('HSET', KEYS[1], 'mean', 0.9 * mean + 0.1 * tonumber(ARGV[2]))
end
if redis.call('EXISTS', KEYS[1]) == 1 then redis.call('PEXPIRE', KEYS[1], 86400000) end
if tonumber(ARGV[3]) > 0 or tonumber(ARGV[5]) > 0 then
  redis.call('SADD', KEYS[2], ARGV[8])
  redis.call('PEXPIRE', KEYS[2], 86400000)
end
return 0
