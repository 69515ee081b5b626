-- Takes the partition from the writer that had it, or tells the server the
-- connection of the one that has it.
-- ARGV: layout, writer, the writer before, connection's name, identity, owner, client, run.
local layout, writer, before = ARGV[1], ARGV[2], ARGV[3]
local found = redis.call('HMGET', PARTITION, 'layout', 'writer', 'batch', 'fence', 'order')
if found[1] and found[1] ~= layout then
	return { 'layout', found[1] }
end
if (found[2] or '') ~= before then
	return { 'taken', found[2] or '', found[3] or '' }
end
local kinds = { 'hash', 'hash', 'hash', 'hash', 'hash', 'zset', 'zset', 'zset', 'zset', 'zset', 'zset', 'zset' }
for i, key in ipairs(KEYS) do
	local kind = redis.call('TYPE', key).ok
	if kind ~= 'none' and (kind ~= kinds[i] or not found[1]) then
		return { 'foreign', key, kind }
	end
end
local batch, fence, order = found[3] or '0', found[4] or '0', found[5] or '0'
if before ~= writer then
	batch = string.format('%.0f', tonumber(batch) + 1)
end
redis.call('HSET', PARTITION, 'layout', layout, 'writer', writer, 'batch', batch, 'fence', fence, 'order', order,
	'connection', ARGV[4], 'identity', ARGV[5], 'owner', ARGV[6], 'client', ARGV[7], 'run', ARGV[8])
return { 'ok', batch, fence, order }
