-- May this attempt of a tool begin? Takes everything it needs, or nothing.
--   KEYS   1 breaker (hash)        of tenant and tool: opened, until, probe, probe_until, n<bucket>, f<bucket>
--          2 tries (hash)          of the tool: n<bucket> attempts, r<bucket> retries
--          3 rate (sorted set)     starts of the tool, by time      4 next (string)  when the next booked start is
--          5 busy (sorted set)     attempts that hold a place of the tool, by the end of their lease
--          6 serial (sorted set)   the attempt that holds the serial key, by the end of its lease
--          7, 8 (sorted sets)      calls that wait for 5 and for 6, by when they are forgotten
--   ARGV   1 now in ms, or '' for this server's clock  2 id of the attempt  3 id of the call  4 lease in ms
--          5 how long a probe may take in ms  6 rate: count or 0  7 rate: period in ms  8 places or 0
--          9 serial key: 1 or 0  10 is it a retry: 1 or 0  11 was it booked before: 1 or 0
--          12 retries that are always allowed  13 share of retries, or -1  14 window in ms  15 bucket in ms
--   gives  {'go', is it the probe}  {'open', until in ms}  {what is in the way, wait in ms}, and now in ms
-- Atomic: of all processes before a half-open breaker one gets the probe.
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local id, call, lease = ARGV[2], ARGV[3], tonumber(ARGV[4])
local WAIT, WAIT_MAX = 500, 30000

local function full(key, waiting, places)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
  redis.call('ZREMRANGEBYSCORE', waiting, '-inf', now)
  if redis.call('ZCARD', key) < places then return nil end
  redis.call('ZREM', waiting, call)
  local wait = math.min(WAIT_MAX, WAIT * (1 + math.floor(redis.call('ZCARD', waiting) / places)))
  redis.call('ZADD', waiting, now + 2 * wait + 5000, call)
  redis.call('PEXPIRE', waiting, 2 * WAIT_MAX + 10000)
  return wait
end

local function take(key, waiting)
  redis.call('ZADD', key, now + lease, id)
  redis.call('PEXPIRE', key, lease + 60000)
  redis.call('ZREM', waiting, call)
end

-- breaker
local until_ms = tonumber(redis.call('HGET', KEYS[1], 'until') or '')
local probe = 0
if until_ms then
  if until_ms > now then return {'open', until_ms, now} end
  local probing = tonumber(redis.call('HGET', KEYS[1], 'probe_until') or '')
  if probing and probing > now then return {'open', probing, now} end
  probe = 1
end

-- retry budget
if ARGV[10] == '1' and tonumber(ARGV[13]) >= 0 then
  local window, bucket = tonumber(ARGV[14]), tonumber(ARGV[15])
  local first, attempts, retries = math.floor((now - window) / bucket) + 1, 0, 0
  local kept = redis.call('HGETALL', KEYS[2])
  for at = 1, #kept, 2 do
    local kind, k = string.sub(kept[at], 1, 1), tonumber(string.sub(kept[at], 2))
    if k < first then redis.call('HDEL', KEYS[2], kept[at])
    elseif kind == 'n' then attempts = attempts + tonumber(kept[at + 1])
    else retries = retries + tonumber(kept[at + 1]) end
  end
  if retries + 1 > math.max(tonumber(ARGV[12]), tonumber(ARGV[13]) * attempts) then
    return {'retry_budget', bucket - now % bucket, now}
  end
end

-- serial key, places
if ARGV[9] == '1' then
  local wait = full(KEYS[6], KEYS[8], 1)
  if wait then return {'serial', wait, now} end
end
if ARGV[8] ~= '0' then
  local wait = full(KEYS[5], KEYS[7], tonumber(ARGV[8]))
  if wait then return {'bulkhead', wait, now} end
end

-- rate: a window that moves; who is refused is booked a start, and who is new does not go before the booked ones
if ARGV[6] ~= '0' then
  local count, period = tonumber(ARGV[6]), tonumber(ARGV[7])
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - period)
  local used = redis.call('ZCARD', KEYS[3])
  local booked = tonumber(redis.call('GET', KEYS[4]) or '') or 0
  if used >= count or (booked > now and ARGV[11] == '0') then
    local room = now
    if used >= count then
      room = tonumber(redis.call('ZRANGE', KEYS[3], used - count, used - count, 'WITHSCORES')[2]) + period
    end
    local start = math.ceil(math.max(room, booked))
    redis.call('SET', KEYS[4], start + math.ceil(period / count), 'PX', math.ceil(start - now + period) + 1000)
    return {'rate', math.max(1, start - now), now}
  end
  redis.call('ZADD', KEYS[3], now, id)
  redis.call('PEXPIRE', KEYS[3], math.ceil(period) + 1000)
end

if ARGV[9] == '1' then take(KEYS[6], KEYS[8]) end
if ARGV[8] ~= '0' then take(KEYS[5], KEYS[7]) end
if probe == 1 then
  redis.call('HSET', KEYS[1], 'probe', id, 'probe_until', now + tonumber(ARGV[5]))
end
if ARGV[10] == '1' then
  redis.call('HINCRBY', KEYS[2], 'r' .. math.floor(now / tonumber(ARGV[15])), 1)
  redis.call('PEXPIRE', KEYS[2], 2 * tonumber(ARGV[14]))
end
return {'go', probe, now}
