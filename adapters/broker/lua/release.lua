-- Puts an entry back into its stream, now or after a delay, as a new entry that nobody has had.
--   KEYS   the stream, the sorted set of what is held back from it
--   ARGV   group, id, body, delay in ms
--   gives  1, or 0 where the entry was settled already
-- Atomic: the entry is in one place, whoever dies.
if redis.call('XACK', KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
redis.call('XDEL', KEYS[1], ARGV[2])
local delay = tonumber(ARGV[4])
if delay <= 0 then
  redis.call('XADD', KEYS[1], '*', 'b', ARGV[3])
else
  local t = redis.call('TIME')
  redis.call('ZADD', KEYS[2], t[1] * 1000 + math.floor(t[2] / 1000) + delay, ARGV[2] .. '\0' .. ARGV[3])
end
return 1
