-- Moves the fence, so that a script which was sent before and has not come yet
-- will change nothing, and gives the mark. ARGV: writer, fence.
local mark = redis.call('HMGET', PARTITION, 'writer', 'batch', 'fence')
if mark[1] ~= ARGV[1] then
	return { 'fenced', mark[1] or '', mark[2] or '' }
end
if tonumber(ARGV[2]) <= tonumber(mark[3]) then
	return { 'late' } -- itself one that was sent before
end
redis.call('HSET', PARTITION, 'fence', ARGV[2])
return { 'ok', mark[2] }
