-- Still working: the lease of a place or a serial key begins again.
--   KEYS   sorted sets of holders, by the end of their lease
--   ARGV   1 now in ms or ''   2 id of the attempt   3 lease in ms
--   gives  in how many it still is
-- Atomic. Who was taken for dead meanwhile does not get its place back.
local now = tonumber(ARGV[1])
if not now then
  local t = redis.call('TIME')
  now = t[1] * 1000 + math.floor(t[2] / 1000)
end
local kept = 0
for _, key in ipairs(KEYS) do
  if redis.call('ZSCORE', key, ARGV[2]) then
    redis.call('ZADD', key, now + tonumber(ARGV[3]), ARGV[2])
    redis.call('PEXPIRE', key, tonumber(ARGV[3]) + 60000)
    kept = kept + 1
  end
end
return kept
