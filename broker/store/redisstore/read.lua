-- Gives a page of rows: how many of those asked for are dealt with, and for each
-- order, head, state and content; false stands for one that is not there.
-- ARGV: how the rows are named; 'content' or ''; bytes of content after which the
-- page ends; then, by name, orders or message IDs, or an order after which they
-- come, a limit, and their states.
local how, with_content, most = ARGV[1], ARGV[2] == 'content', tonumber(ARGV[3])
local orders = {}
if how == 'after' then
	local limit = tonumber(ARGV[5])
	for i = 6, #ARGV do
		for _, order in ipairs(redis.call('ZRANGEBYSCORE', BY_STATE[ARGV[i]], '(' .. ARGV[4], '+inf', 'LIMIT', 0, limit)) do
			orders[#orders + 1] = order
		end
	end
	table.sort(orders, function(a, b) return tonumber(a) < tonumber(b) end)
	for i = #orders, limit + 1, -1 do
		orders[i] = nil
	end
else
	for i = 4, #ARGV do
		orders[#orders + 1] = ARGV[i]
	end
	if how == 'ids' then
		orders = fetch(IDS, orders)
	end
end
local known, at = {}, {}
for i, order in ipairs(orders) do
	if order then
		known[#known + 1], at[#at + 1] = order, i
	end
end
local heads, states = fetch(HEADS, known), fetch(STATES, known)
local page, bytes = { #orders }, 0
for i, order in ipairs(known) do
	local content = false
	if with_content then
		bytes = bytes + redis.call('HSTRLEN', CONTENTS, order)
		if i > 1 and bytes > most then
			page[1] = at[i] - 1
			break
		end
		content = redis.call('HGET', CONTENTS, order)
	end
	if how ~= 'orders' or heads[i] or states[i] then -- it may have gone since its order was read
		page[#page + 1], page[#page + 2], page[#page + 3], page[#page + 4] = order, heads[i], states[i], content
	end
end
return page
