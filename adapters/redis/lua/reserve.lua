-- May this model call be made? Takes one request and its tokens from the lane, or says when to ask again.
--   KEYS   1 lane (hash)   requests, tokens: what may be used now; at: as of when in ms; paused: until when in ms
--                          limit_requests, limit_tokens: what the provider said its limits are
--                          mean: tokens a call really uses
--          2, 3 interactive ones that wait (sorted sets): by when they came, and by when they are forgotten
--          4, 5 batch ones, the same
--   ARGV   1 now in ms or ''  2 who asks  3 batch: 1 or 0  4 tokens  5 requests of the quota or -1
--          6 tokens of the quota or -1  7 its period in ms
--   gives  {'go', tokens that were taken, now in ms}  {'wait' or 'paused', ms, now in ms}
-- Atomic. A quota is spread evenly over its period, with a hundredth of it at once at most (of a period below 50 s: what
-- half a second of it is, a twentieth at most), so that a provider sees
-- less than its limit in every window, and nobody waits for a period because somebody used it up at its beginning.
-- Who needs more than that hundredth makes a debt that is paid before the next one. Who was refused is before who comes
-- later, and every interactive one is before every batch one; batch calls leave half of the hundredth to them.
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local who, batch, tokens, period = ARGV[2], ARGV[3] == '1', tonumber(ARGV[4]), tonumber(ARGV[7])
local facts = redis.call(
  'HMGET', KEYS[1], 'requests', 'tokens', 'at', 'paused', 'limit_requests', 'limit_tokens', 'mean')
local paused = tonumber(facts[4] or '') or 0
if paused > now then return {'paused', paused - now, now} end

local function limit(given, said)
  if tonumber(given) >= 0 then return tonumber(given) end
  return tonumber(said or '')
end
local most_r, most_t = limit(ARGV[5], facts[5]), limit(ARGV[6], facts[6])
if not most_r and not most_t then return {'go', tokens, now} end
local share = math.min(0.05, math.max(0.01, 500 / period))
local cap_r = most_r and math.max(1, math.min(most_r / 20, math.max(2, most_r * share))) or 0
local cap_t = most_t and math.max(1, most_t * share) or 0
local rate_r = most_r and math.max(0.5, 0.98 * most_r - (cap_r - 1)) / period or 0
local rate_t = most_t and math.max(0.5, 0.985 * most_t - cap_t) / period or 0

local at = tonumber(facts[3] or '') or now
local function filled(level, rate, cap)
  level = tonumber(level or '') or cap
  if level >= cap then return level end
  return math.min(cap, level + rate * math.max(0, now - at))
end
local level_r, level_t = filled(facts[1], rate_r, cap_r), filled(facts[2], rate_t, cap_t)

for first = 2, 4, 2 do
  for _, gone in ipairs(redis.call('ZRANGEBYSCORE', KEYS[first + 1], '-inf', now)) do
    redis.call('ZREM', KEYS[first], gone)
    redis.call('ZREM', KEYS[first + 1], gone)
  end
end
local queue, ends = batch and KEYS[4] or KEYS[2], batch and KEYS[5] or KEYS[3]
local ahead = redis.call('ZRANK', queue, who) or redis.call('ZCARD', queue)
if batch then ahead = ahead + redis.call('ZCARD', KEYS[2]) end

-- Seconds until there is enough for this one and for those before it, each of whom uses `each`.
local function lacks(level, need, cap, rate, each)
  if cap == 0 then return 0 end
  if need > 1 then need = math.min(need, cap / 2) end -- below the brim: what comes in while nobody looks is kept
  local wanted = math.min(need, cap) + ahead * each
  if batch then wanted = wanted + math.max(0, (cap - need) / 2) end
  return wanted > level and (wanted - level) / rate or 0
end
local mean = tonumber(facts[7] or '')
if mean then tokens = math.min(tokens, math.ceil(2 * mean)) end -- calls that write all they may are rare
mean = mean or tokens
local wait = math.max(lacks(level_r, 1, cap_r, rate_r, 1), lacks(level_t, tokens, cap_t, rate_t, mean))
if wait > 0 then
  wait = math.max(2, math.ceil(math.min(wait, period / 240 * (1 + ahead)))) -- tokens may come back before
  redis.call('ZADD', queue, 'NX', now, who)
  redis.call('ZADD', ends, now + wait + 2000, who)
  redis.call('PEXPIRE', queue, 120000)
  redis.call('PEXPIRE', ends, 120000)
  redis.call('HSET', KEYS[1], 'requests', level_r, 'tokens', level_t, 'at', now)
  redis.call('PEXPIRE', KEYS[1], 86400000)
  return {'wait', wait, now}
end
redis.call('ZREM', queue, who)
redis.call('ZREM', ends, who)
redis.call('HSET', KEYS[1], 'requests', level_r - 1, 'tokens', level_t - tokens, 'at', now)
redis.call('PEXPIRE', KEYS[1], 86400000)
return {'go', tokens, now}
