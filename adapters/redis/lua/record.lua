-- Counts how attempts ended, and opens, closes or re-opens the breaker by it.
--   KEYS   1 breaker (hash)   2 open breakers (hash: member -> until in ms)   3 all breakers (sorted set, by last use)
--          4 tries of the tool (hash)
--   ARGV   1 now in ms or ''  2 member  3 attempts that were answered  4 attempts that failed
--          5 id of the probe that ended, or ''  6 window in ms  7 bucket in ms  8 calls at least
--          9 share of failures  10 how long it stays open in ms
--   gives  {1 where it opened by this, until in ms or 0, now in ms}
-- Atomic. While it is open, only its probe changes it: a straggler neither moves the time at which it opened nor
-- closes it. Reading never changes it.
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local ok, failed = tonumber(ARGV[3]), tonumber(ARGV[4])
local window, bucket = tonumber(ARGV[6]), tonumber(ARGV[7])
local KEPT = 86400000 -- an unused one is forgotten after a day

local function open()
  local till = now + tonumber(ARGV[10])
  redis.call('DEL', KEYS[1])
  redis.call('HSET', KEYS[1], 'opened', now, 'until', till)
  redis.call('PEXPIRE', KEYS[1], KEPT)
  redis.call('HSET', KEYS[2], ARGV[2], till)
  redis.call('ZADD', KEYS[3], now, ARGV[2])
  return {1, till, now}
end

if ok + failed > 0 then
  redis.call('HINCRBY', KEYS[4], 'n' .. math.floor(now / bucket), ok + failed)
  redis.call('PEXPIRE', KEYS[4], 2 * window)
end

local until_ms = tonumber(redis.call('HGET', KEYS[1], 'until') or '')
if until_ms then
  if ARGV[5] == '' or redis.call('HGET', KEYS[1], 'probe') ~= ARGV[5] then return {0, until_ms, now} end
  if failed > 0 then return open() end
  if ok == 0 then
    redis.call('HDEL', KEYS[1], 'probe', 'probe_until') -- it told nothing: the next one probes
    return {0, until_ms, now}
  end
  redis.call('DEL', KEYS[1])
  redis.call('HDEL', KEYS[2], ARGV[2])
  return {0, 0, now}
end

local k = math.floor(now / bucket)
if ok + failed > 0 then redis.call('HINCRBY', KEYS[1], 'n' .. k, ok + failed) end
if failed > 0 then
  redis.call('HINCRBY', KEYS[1], 'f' .. k, failed)
  redis.call('ZADD', KEYS[3], now, ARGV[2])
  redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now - KEPT)
end
redis.call('PEXPIRE', KEYS[1], 2 * window)
if failed == 0 then return {0, 0, now} end
local first, calls, failures = math.floor((now - window) / bucket) + 1, 0, 0
local kept = redis.call('HGETALL', KEYS[1])
for at = 1, #kept, 2 do
  local kind, b = string.sub(kept[at], 1, 1), tonumber(string.sub(kept[at], 2))
  if b < first then redis.call('HDEL', KEYS[1], kept[at])
  elseif kind == 'n' then calls = calls + tonumber(kept[at + 1])
  else failures = failures + tonumber(kept[at + 1]) end
end
if calls >= tonumber(ARGV[8]) and failures >= tonumber(ARGV[9]) * calls then return open() end
return {0, 0, now}
