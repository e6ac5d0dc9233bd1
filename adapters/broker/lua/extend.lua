-- Still working: the idle time of entries starts again, for those this consumer still has.
--   KEYS   the stream
--   ARGV   group, consumer, then ids
--   gives  how many it has
-- Atomic. Somebody else's entry is left alone: an extension that comes late must not take it back.
local kept = 0
for i = 3, #ARGV do
  local mine = redis.call('XPENDING', KEYS[1], ARGV[1], ARGV[i], ARGV[i], 1, ARGV[2])
  if mine[1] then
    redis.call('XCLAIM', KEYS[1], ARGV[1], ARGV[2], 0, ARGV[i], 'JUSTID')
    kept = kept + 1
  end
end
return kept
