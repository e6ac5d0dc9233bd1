-- Removes a consumer that has nothing.
--   KEYS   the stream
--   ARGV   group, consumer
--   gives  1 where it is gone
-- Atomic: what it may have got since somebody looked keeps it.
local has = redis.call('XPENDING', KEYS[1], ARGV[1], '-', '+', 1, ARGV[2])
if has[1] then return 0 end
redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], ARGV[2])
return 1
