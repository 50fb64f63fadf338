-- Progress, settle and sweep: many reservations of one organisation in one call.
-- KEYS: 1 sweep set, then per entry its record and one key per limit
-- ARGV: 1 now or '', 2 hold ms, 3 entries {op, id, descriptions as text, charges, abandoned}
--   'p' raise what is charged to `charges` (money: set the hold to it) and keep the reservation alive
--   's' replace what is charged by `charges`, once          'w' the same with `abandoned`, if nobody kept it alive
-- A record that is not there was lost with a server or never arrived: the whole is charged.
-- Answer: per entry a code (0 the record was not there, 1 done, 2 nothing to do), then what debt ceilings cut off
--         as triples entry, limit, ticks.
local now = clock()
local hold = tonumber(ARGV[2]) * 1000
local entries = cjson.decode(ARGV[3])
local codes, cut = {}, {}
local at_key = 2

local function numbers(list)
  local out = {}
  for number in string.gmatch(list, '%d+') do out[#out + 1] = tonumber(number) end
  return out
end

for e = 1, #entries do
  local op, id, target = entries[e][1], entries[e][2], entries[e][4]
  local limits = cjson.decode(entries[e][3])
  local n = #limits
  local record, first = KEYS[at_key], at_key
  at_key = at_key + 1 + n
  local value = redis.call('GET', record)
  local state, since, had, periods, kept_as = nil, now, {}, {}, nil
  if value then
    state = string.sub(value, 1, 1)
    if state ~= 'd' then
      local _, at, charges, began, _, as = string.match(value, '^(%a)|(%d+)|([%d,]*)|([%d,]*)|([%d,]*)|(.*)$')
      since, had, periods = tonumber(at), numbers(charges), numbers(began)
      if as ~= entries[e][3] then kept_as = cjson.decode(as) end
    end
  end
  local due = true
  if op == 'w' then
    local score = redis.call('ZSCORE', KEYS[1], id)
    due = state == 'o' and (not score or tonumber(score) <= now)
    target = entries[e][5]
  end
  if state == 'd' or not due then
    codes[e] = 2
    if op == 'w' and state ~= 'o' then redis.call('ZREM', KEYS[1], id) end
  else
    codes[e] = value and 1 or 0
    local charges, began = {}, {}
    for i = 1, n do
      local limit, kind, key = limits[i], limits[i][1], KEYS[first + i]
      local has, base = target[i], had[i] or 0
      began[i] = 0
      if kind == 'r' then
        -- The limit's figures changed since: what was charged, in units, at the price of one now.
        if kept_as and kept_as[i] and kept_as[i][2] == limit[2] then base = base / kept_as[i][3] * limit[3] end
        local change = has - base
        if op == 'p' and change < 0 then change, has = 0, base end
        if change ~= 0 then
          local debt = owed(redis.call('GET', key), limit, now)
          if change < 0 and limit[8] == 1 then
            change = math.min(0, change + math.max(0, now - since) * limit[4])
          end
          debt = debt + change
          if debt > limit[6] then
            cut[#cut + 1], cut[#cut + 2], cut[#cut + 3] = e, i, debt - limit[6]
            debt = limit[6]
          end
          write_bucket(key, limit, debt, now)
        end
        charges[i] = text(has)
      elseif kind == 'c' then
        charges[i] = '1'
        if op == 'p' then take_slot(key, id, now + hold, now) else redis.call('ZREM', key, id) end
      else
        local period, spent, held = read_budget(redis.call('GET', key), kind, now)
        local mine = periods[i] or period
        if mine == period and (has ~= base or op ~= 'p') then
          if state == 's' then spent = spent - base else held = held - base end
          if op == 'p' then held = held + has else spent = spent + has end
          write_budget(key, kind, period, math.max(0, spent), held)
        end
        charges[i], began[i] = text(has), text(mine)
      end
    end
    if op == 's' then
      redis.call('SET', record, 'd', 'PX', text(hold / 1000 * 10))
      redis.call('ZREM', KEYS[1], id)
    else
      local abandoned = {}
      for i = 1, n do abandoned[i] = text(entries[e][5][i]) end
      local mark = 'o'
      if op == 'w' then
        mark = 's'
        redis.call('ZREM', KEYS[1], id)
      else
        redis.call('ZADD', KEYS[1], text(now + hold), id)
        redis.call('PEXPIRE', KEYS[1], text(hold / 1000 * 20))
      end
      redis.call('SET', record, mark .. '|' .. text(since) .. '|' .. table.concat(charges, ',') .. '|'
        .. table.concat(began, ',') .. '|' .. table.concat(abandoned, ',') .. '|' .. entries[e][3],
        'PX', text(hold / 1000 * 20))
    end
  end
end
return {codes, cut}
