-- Takes up to a number of entries from several streams, earlier streams first.
--   KEYS   pairs: a stream, then the sorted set of what is held back from it
--   ARGV   group, consumer, how many at most
--   gives  for each entry: the number of its pair, its id, its body
-- Atomic. Entries whose delay is over go back to their stream first, so they need nobody of their own to move them.
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
local left = tonumber(ARGV[3])
local found = {}
for pair = 1, #KEYS / 2 do
  local stream, held = KEYS[2 * pair - 1], KEYS[2 * pair]
  local due = redis.call('ZRANGEBYSCORE', held, '-inf', now, 'LIMIT', 0, 200)
  for _, member in ipairs(due) do
    -- a member is the id it had, a NUL, the body: equal bodies stay different members
    redis.call('XADD', stream, '*', 'b', string.sub(member, string.find(member, '\0', 1, true) + 1))
    redis.call('ZREM', held, member)
  end
  if left > 0 then
    local read = redis.call('XREADGROUP', 'GROUP', ARGV[1], ARGV[2], 'COUNT', left, 'STREAMS', stream, '>')
    if read then
      for _, entry in ipairs(read[1][2]) do
        found[#found + 1] = {pair, entry[1], entry[2][2]}
        left = left - 1
      end
    end
  end
end
return found
