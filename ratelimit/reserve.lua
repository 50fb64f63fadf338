-- Reserve: take from every limit of one organisation, or from none. One call.
-- KEYS: 1 record, 2 sweep set, 3.. one per limit
-- ARGV: 1 now or '', 2 id, 3 hold ms, 4 longest slot lease ms, 5 descriptions, 6 costs (money: {estimate, worst}),
--       7 what an abandoned reservation is settled with
-- Answer: code (0 taken, 1 known, 2 refused, 3 refused by a budget that is spent, 4 settled before), which limit,
--         wait in us, then per limit its level (debt | slots used | {spent + held, held for this one, period, spent}),
--         then the shadow limits that would have refused.
local now = clock()
local limits, costs = cjson.decode(ARGV[5]), cjson.decode(ARGV[6])
local n = #limits
local hold = tonumber(ARGV[3]) * 1000
local known = redis.call('GET', KEYS[1])
local state = known and string.sub(known, 1, 1)
if state == 'd' or state == 's' then return {4} end

local names = {}
for i = 1, n do names[i] = KEYS[i + 2] end
local values = redis.call('MGET', unpack(names))
local level, next_level, shadows = {}, {}, {}
local worst, which, spent_up = 0, 0, false
for i = 1, n do
  local limit, cost, kind = limits[i], costs[i], limits[i][1]
  local wait, exhausted = 0, false
  if kind == 'r' then
    local debt = owed(values[i], limit, now)
    level[i] = debt
    next_level[i] = debt + cost
    if cost > 0 and debt + cost > limit[5] then
      if limit[4] == 0 then wait = 1 else wait = math.ceil((debt + cost - limit[5]) / limit[4]) end
      if next_level[i] > limit[6] then next_level[i] = limit[6] end
    end
  elseif kind == 'c' then
    local used = slots_used(KEYS[i + 2], now, tonumber(ARGV[4]) * 1000)
    level[i] = used
    if used >= limit[3] then wait = 1000000 end
  else
    local period, spent, held = read_budget(values[i], kind, now)
    local free = limit[3] - spent - held
    level[i] = {spent + held, 0, period, spent, held}
    local estimate, most = cost[1], cost[2]
    local holds = estimate
    if limit[5] == 1 or free - estimate < limit[4] then holds = most end
    if most > free then
      if most <= limit[3] - spent then
        wait = 1000000
      else
        wait, exhausted = period_end(kind, period) - now, true
      end
      holds = estimate
    end
    if most == 0 then wait, holds = 0, 0 end
    next_level[i] = holds
  end
  if wait > 0 then
    if limit[7] == 1 then
      shadows[#shadows + 1] = i
    elseif wait > worst then
      worst, which, spent_up = wait, i, exhausted
    end
  end
end

if state ~= 'o' and which == 0 then
  local charges, periods = {}, {}
  for i = 1, n do
    local limit, cost, kind, key = limits[i], costs[i], limits[i][1], KEYS[i + 2]
    periods[i] = 0
    if kind == 'r' then
      charges[i] = text(cost)
      if cost > 0 then
        write_bucket(key, limit, next_level[i], now)
        level[i] = next_level[i]
      end
    elseif kind == 'c' then
      charges[i] = '1'
      take_slot(key, ARGV[2], now + hold, now)
      level[i] = level[i] + 1
    else
      local was, holds = level[i], next_level[i]
      charges[i], periods[i] = text(holds), text(was[3])
      if holds > 0 then write_budget(key, kind, was[3], was[4], was[5] + holds) end
      level[i] = {was[1] + holds, holds, was[3], was[4]}
    end
  end
  redis.call('SET', KEYS[1], 'o|' .. text(now) .. '|' .. table.concat(charges, ',') .. '|'
    .. table.concat(periods, ',') .. '|' .. ARGV[7] .. '|' .. ARGV[5], 'PX', text(hold / 1000 * 20))
  redis.call('ZADD', KEYS[2], text(now + hold), ARGV[2])
  redis.call('PEXPIRE', KEYS[2], text(hold / 1000 * 20))
end

local code = 0
if state == 'o' then code = 1 elseif which > 0 then code = 2 end
if code == 2 and spent_up then code = 3 end
return {code, which, worst, level, shadows}
