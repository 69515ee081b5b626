-- Does one batch, all or nothing. Redis undoes nothing of a script that fails, so
-- that everything is worked out first, and written when nothing can fail any more.
-- ARGV: the mark as it must be (writer, batch, fence) and as it will be (batch,
-- order); the payload versions that can be changed (from, to); how many markers are
-- kept; up to which member of KEEP markers are swept ('': none), and how many at
-- once; then operations of WIDTH values: kind, message ID, and what it sets.
local FIRST, WIDTH = 11, 7
local STATE, VERSION, ATTEMPTS, EXPIRES, KEEP_UNTIL, GROUP, CONSUMER, REASON = 1, 2, 3, 4, 5, 6, 7, 8 -- of a state
local TOPIC, KEY, SIZE, CONTENT_SUM = 3, 4, 6, 7 -- of a head
local oldest, newest = tonumber(ARGV[6]), tonumber(ARGV[7])
local markers_kept, sweep_to, sweep_at_once = tonumber(ARGV[8]), ARGV[9], tonumber(ARGV[10])

local mark = redis.call('HMGET', PARTITION, 'writer', 'batch', 'fence')
if mark[1] ~= ARGV[1] or mark[2] ~= ARGV[2] or mark[3] ~= ARGV[3] then
	return { 'fenced', mark[1] or '', mark[2] or '' }
end

-- What is there of the rows that the batch names.
local rows, asked = {}, {} -- rows by message ID
do
	local seen = {}
	for i = FIRST, #ARGV, WIDTH do
		local id = ARGV[i + 1]
		if not seen[id] then
			seen[id] = true
			asked[#asked + 1] = id
		end
	end
	local found, orders = {}, fetch(IDS, asked)
	for i, id in ipairs(asked) do
		if orders[i] then
			rows[id] = { order = orders[i] }
			found[#found + 1] = orders[i]
		end
	end
	local states, n = fetch(STATES, found), 0
	for i, id in ipairs(asked) do
		if orders[i] then
			n = n + 1
			local was = unseal(orders[i], states[n])
			rows[id].now = was -- nil: damaged, and left alone
			if was then
				rows[id].was, rows[id].had = was[STATE], was[EXPIRES]
			end
		end
	end
end

local CHANGES = {
	attempt = { PENDING, function(f, a, b, c) f[ATTEMPTS], f[GROUP], f[CONSUMER] = a, b, c end },
	settle = { PENDING, function(f, a, b) f[STATE], f[KEEP_UNTIL], f[REASON] = PROCESSED, a, b end },
	['dead-letter'] = { PENDING, function(f, a, b) f[STATE], f[REASON], f[CONSUMER] = DEAD, a, b end },
	redrive = { DEAD, function(f, a) f[STATE], f[ATTEMPTS], f[REASON], f[EXPIRES] = PENDING, '0', '', a end },
	delete = { PENDING },
	discard = { DEAD },
}

-- marker keeps of a row its IDs, and what ended it; false where they are damaged.
local function marker(row, keep, reason)
	local head = unseal(row.order, row.head or redis.call('HGET', HEADS, row.order))
	if not head then
		return false
	end
	head[TOPIC], head[KEY], head[SIZE], head[CONTENT_SUM] = '', '', '0', '0'
	row.head = seal(row.order, head)
	row.now = { SETTLED, row.now[VERSION], '0', '', keep, '', '', reason }
	return true
end

local touched, new_markers = {}, 0
for i = FIRST, #ARGV, WIDTH do
	local kind, id, a, b, c, d, expires = unpack(ARGV, i, i + WIDTH - 1)
	local row = rows[id]
	if kind == 'insert' then
		if row then
			return { 'exists', id }
		end
		row = { id = id, order = a, head = b, state = c, content = d, expires = expires }
		rows[id] = row
		touched[#touched + 1] = row
	elseif row then
		local f = row.now or unseal(row.order, row.state)
		local from, set = unpack(CHANGES[kind])
		local version = f and tonumber(f[VERSION])
		if f and f[STATE] == from and oldest <= version and version <= newest then
			row.now, row.id = f, id
			local done = true
			if set then
				set(f, a, b, c)
			elseif a == '' then
				row.gone, rows[id] = true, nil
			else
				done = marker(row, a, b)
				new_markers = new_markers + (done and 1 or 0)
			end
			if done and not row.touched then
				row.touched = true
				if row.was then -- an insert of this batch is touched already
					touched[#touched + 1] = row
				end
			end
		end
	end
end

local due = {}
if sweep_to ~= '' then
	due = redis.call('ZRANGEBYLEX', KEEP, '-', sweep_to, 'LIMIT', 0, sweep_at_once)
end
if #touched == 0 and #due == 0 then
	return { 'ok', mark[2] }
end

-- From here on everything is written. The first command is one that a server without
-- memory refuses: later ones of a script that has written are let pass.
redis.call('HSET', PARTITION, 'batch', ARGV[4], 'order', ARGV[5])
local set_ids, set_heads, set_states, set_contents, add, add_expiry, add_keep, add_history = {}, {}, {}, {}, {}, {}, {}, {}
local drop_ids, drop_rows, drop_contents, drop, drop_expiry = {}, {}, {}, {}, {}
for state in pairs(BY_STATE) do
	add[state], drop[state] = {}, {}
end
local function push(list, ...)
	for _, v in ipairs({ ... }) do
		list[#list + 1] = v
	end
end
for _, row in ipairs(touched) do
	local order = row.order
	if row.gone then
		if row.was then
			push(drop[row.was], order)
			push(drop_rows, order)
			push(drop_ids, row.id)
			if row.was == PENDING and row.had ~= '' then
				push(drop_expiry, row.had .. order)
			end
		end
	else
		local f = row.now
		local state, expires = f and f[STATE] or PENDING, f and f[EXPIRES] or row.expires
		push(set_states, order, f and seal(order, f) or row.state)
		if row.head then
			push(set_heads, order, row.head)
		end
		if not row.was then
			push(set_ids, row.id, order)
		end
		if row.content and state ~= SETTLED then
			push(set_contents, order, row.content)
		elseif row.was and state == SETTLED then
			push(drop_contents, order)
		end
		if state ~= row.was then
			push(add[state], order, order)
			if row.was then
				push(drop[row.was], order)
			end
		end
		local had = row.was == PENDING and row.had or ''
		local has = state == PENDING and expires or ''
		if had ~= has then
			if had ~= '' then
				push(drop_expiry, had .. order)
			end
			if has ~= '' then
				push(add_expiry, 0, has .. order)
			end
		end
		if state == SETTLED then
			push(add_keep, 0, f[KEEP_UNTIL] .. order)
		elseif state == PROCESSED and f[KEEP_UNTIL] ~= '' then
			push(add_history, 0, f[KEEP_UNTIL] .. order)
		end
	end
end
bulk('HDEL', IDS, drop_ids)
bulk('HDEL', HEADS, drop_rows)
bulk('HDEL', STATES, drop_rows)
bulk('HDEL', CONTENTS, drop_rows)
bulk('HDEL', CONTENTS, drop_contents)
bulk('ZREM', EXPIRY, drop_expiry)
bulk('HSET', IDS, set_ids)
bulk('HSET', HEADS, set_heads)
bulk('HSET', STATES, set_states)
bulk('HSET', CONTENTS, set_contents)
bulk('ZADD', EXPIRY, add_expiry)
bulk('ZADD', KEEP, add_keep)
bulk('ZADD', HISTORY, add_history)
for state, key in pairs(BY_STATE) do
	bulk('ZREM', key, drop[state])
	bulk('ZADD', key, add[state])
end

-- Markers that are to be kept no longer, and the oldest of too many.
local surplus = math.min(redis.call('ZCARD', KEEP) - #due - markers_kept, sweep_at_once)
if surplus > 0 then
	due = redis.call('ZRANGE', KEEP, 0, #due + surplus - 1)
end
local orders, ids, gone = {}, {}, {}
for i, member in ipairs(due) do
	orders[i] = string.sub(member, 17)
end
for i, head in ipairs(fetch(HEADS, orders)) do
	local fields = unseal(orders[i], head)
	if fields then -- a damaged one stays, and is not looked for again
		push(ids, fields[1])
		push(gone, orders[i])
	end
end
bulk('ZREM', KEEP, due)
bulk('HDEL', IDS, ids)
bulk('HDEL', HEADS, gone)
bulk('HDEL', STATES, gone)
bulk('ZREM', BY_STATE[SETTLED], gone)
return { 'ok', ARGV[4] }
