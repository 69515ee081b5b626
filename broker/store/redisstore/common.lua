-- Before every script: the keys, and the coding of rows (see row.go).
local PARTITION, IDS, HEADS, STATES, CONTENTS, EXPIRY, KEEP, HISTORY = unpack(KEYS, 1, 8)
local PENDING, PROCESSED, SETTLED, DEAD = '1', '2', '3', '4'
local BY_STATE = { [PENDING] = KEYS[9], [PROCESSED] = KEYS[10], [SETTLED] = KEYS[11], [DEAD] = KEYS[12] }

-- Arguments of one command. Lua's stack holds 8,000.
local CHUNK = 4000

-- bulk gives a command a list of any length.
local function bulk(command, key, list)
	for i = 1, #list, CHUNK do
		redis.call(command, key, unpack(list, i, math.min(i + CHUNK - 1, #list)))
	end
end

-- fetch reads fields of a hash; false stands for one that is not there.
local function fetch(key, fields)
	local values = {}
	for i = 1, #fields, CHUNK do
		for _, v in ipairs(redis.call('HMGET', key, unpack(fields, i, math.min(i + CHUNK - 1, #fields)))) do
			values[#values + 1] = v
		end
	end
	return values
end

local SUM = 16

local function sum(order, body)
	return string.sub(redis.sha1hex(order .. ':' .. body), 1, SUM)
end

-- seal makes one value of fields: each behind its length, and a checksum.
local function seal(order, fields)
	local parts = {}
	for i, field in ipairs(fields) do
		parts[i] = struct.pack('>I4', #field) .. field
	end
	local body = table.concat(parts)
	return body .. sum(order, body)
end

-- unseal is nil where the checksum does not fit.
local function unseal(order, value)
	if not value or #value < SUM then
		return nil
	end
	local body = string.sub(value, 1, -SUM - 1)
	if sum(order, body) ~= string.sub(value, -SUM) then
		return nil
	end
	local fields, at = {}, 1
	while at <= #body do
		local n
		n, at = struct.unpack('>I4', body, at)
		fields[#fields + 1] = string.sub(body, at, at + n - 1)
		at = at + n
	end
	return fields
end
