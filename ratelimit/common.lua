-- What every script here begins with: time, one bucket, one budget, one set of slots.
-- The sums are those of bucket.py and budget.py. Every figure is an integer below 2^53, so doubles hold it exactly;
-- numbers become text by '%.0f' alone, because tostring() keeps only 14 digits.
-- A description of a limit is an array: 1 kind ('r' rate, 'c' slots, 'd' and 'm' money), 2 key, then
--   r: 3 unit, 4 leak, 5 cap, 6 ceiling      c: 3 amount      d, m: 3 amount, 4 near, 5 exact
-- and for all 7 shadow, 8 strict.

local DAY = 86400000000

local function clock()
  if ARGV[1] ~= '' then return tonumber(ARGV[1]) end
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- A key outlives what it says by this many ms: by more where the time is a simulation's, which may stand still.
local KEPT_MS = 1000
if ARGV[1] ~= '' then KEPT_MS = 3600000 end

local function text(n) return string.format('%.0f', n) end

local function quotient(a, b) return (a - math.fmod(a, b)) / b end

-- The debt of a bucket in ticks at `now`. A bucket kept under another price of a unit keeps the units it owes.
local function owed(value, limit, now)
  if not value then return 0 end
  local unit = limit[3]
  local debt, at, was = string.match(value, '^(%d+) (%d+) (%d+)$')
  debt, at, was = tonumber(debt), tonumber(at), tonumber(was)
  if was ~= unit then
    local rest = math.fmod(debt, was)
    debt = (debt - rest) / was
    if rest > 0 then debt = debt + 1 end
    debt = debt * unit
  end
  if debt > limit[6] then debt = limit[6] end
  if now > at then debt = debt - (now - at) * limit[4] end
  if debt < 0 then return 0 end
  return debt
end

-- A bucket that owes nothing is what a new one is, so every key may go when its debt is paid.
local function write_bucket(key, limit, debt, now)
  if debt <= 0 then
    redis.call('DEL', key)
  else
    local ms = KEPT_MS
    if limit[4] > 0 then ms = math.ceil(debt / limit[4] / 1000) + KEPT_MS end
    redis.call('SET', key, text(debt) .. ' ' .. text(now) .. ' ' .. text(limit[3]), 'PX', text(ms))
  end
end

local function month_of(day)
  day = day + 719468
  local era = quotient(day, 146097)
  local of_era = day - era * 146097
  local year = quotient(of_era - quotient(of_era, 1460) + quotient(of_era, 36524) - quotient(of_era, 146096), 365)
  local of_year = of_era - (365 * year + quotient(year, 4) - quotient(year, 100))
  return (year + era * 400) * 12 + quotient(5 * of_year + 2, 153) + 2
end

local function first_day(month)
  local march_month = math.fmod(month - 2, 12)
  local year = quotient(month - 2, 12)
  local era = quotient(year, 400)
  local of_era = year - era * 400
  return era * 146097 + of_era * 365 + quotient(of_era, 4) - quotient(of_era, 100)
    + quotient(153 * march_month + 2, 5) - 719468
end

local function period_of(kind, now)
  local day = quotient(now, DAY)
  if kind == 'm' then return month_of(day) end
  return day
end

local function period_end(kind, period)
  if kind == 'm' then return first_day(period + 1) * DAY end
  return (period + 1) * DAY
end

-- period, spent, held of a budget at `now`; a period begins once, and never goes back by one.
local function read_budget(value, kind, now)
  local period = period_of(kind, now)
  if not value then return period, 0, 0 end
  local p, spent, held = string.match(value, '^(%d+) (%d+) (%d+)$')
  p = tonumber(p)
  if p < period then return period, 0, 0 end
  if p == period + 1 then period = p end
  return period, tonumber(spent), tonumber(held)
end

local function write_budget(key, kind, period, spent, held)
  if held < 0 then held = 0 end
  local seconds = '172800'
  if kind == 'm' then seconds = '2851200' end
  redis.call('SET', key, text(period) .. ' ' .. text(spent) .. ' ' .. text(held), 'EX', seconds)
end

-- How many slots are taken. Ended leases are dropped; a lease that ends too late, because the clock stepped back,
-- is cut to the longest one there is.
local function slots_used(key, now, longest)
  redis.call('ZREMRANGEBYSCORE', key, '-inf', text(now))
  local late = redis.call('ZRANGEBYSCORE', key, '(' .. text(now + longest), '+inf', 'LIMIT', '0', '100')
  for i = 1, #late do redis.call('ZADD', key, text(now + longest), late[i]) end
  return redis.call('ZCARD', key)
end

local function take_slot(key, member, ends, now)
  redis.call('ZADD', key, text(ends), member)
  redis.call('PEXPIRE', key, text(math.ceil((ends - now) / 1000) * 2 + KEPT_MS))
end
