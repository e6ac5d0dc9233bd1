-- Done with entries: acknowledged and deleted together, so that the length of a stream is what is outstanding.
--   KEYS   the stream
--   ARGV   group, then ids
-- Atomic; an id that is gone already is nothing.
for first = 2, #ARGV, 1000 do
  local last = math.min(first + 999, #ARGV)
  redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, first, last))
  redis.call('XDEL', KEYS[1], unpack(ARGV, first, last))
end
return 0
