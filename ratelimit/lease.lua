-- Leases: what one instance spent from, gives back to and wants from the limits under one hash tag. One call.
-- KEYS: 1 the instance's last call, then per entry its key, and for money the key of who leases how much
-- ARGV: 1 now or '', 2 instance, 3 number of the call, 4 lease ms, 5 entries {description, a, b, c, want, need, floor}
--   r: a ticks spent beyond the lease, b ticks given back
--   c: a slots kept (in use and spare), b slots above those to give up
--   m: a micro-USD spent since the last call in period b, c micro-USD kept (open and spare)
-- `want` is granted while at least `floor` is left: a lease is for when there is plenty. Of `need`, which requests are
-- waiting for, as much is granted as there is.
-- A call that was seen before changes nothing (its grants are forfeited). Answer: {1, per entry {granted, level, ...}}.
local now = clock()
local lease = tonumber(ARGV[4])
local seen = redis.call('GET', KEYS[1])
if seen and tonumber(seen) >= tonumber(ARGV[3]) then return {0} end
redis.call('SET', KEYS[1], ARGV[3], 'PX', text(lease * 2 + 120000))

local function granted(room, want, need, floor)
  if want > 0 and room >= floor then return math.min(room, math.max(want, need)) end
  return math.max(0, math.min(room, need))
end

local entries = cjson.decode(ARGV[5])
local answers = {}
local at_key = 2
for e = 1, #entries do
  local limit, a, b, c = entries[e][1], entries[e][2], entries[e][3], entries[e][4]
  local want, need, floor = entries[e][5], entries[e][6], entries[e][7]
  local kind, key = limit[1], KEYS[at_key]
  at_key = at_key + 1
  if kind == 'r' then
    local debt = owed(redis.call('GET', key), limit, now) + a - b
    local cut = 0
    if debt < 0 then debt = 0 end
    if debt > limit[6] then cut, debt = debt - limit[6], limit[6] end
    local grant = granted(limit[5] - debt, want, need, floor)
    write_bucket(key, limit, debt + grant, now)
    answers[e] = {grant, debt + grant, cut}
  elseif kind == 'c' then
    local prefix = ARGV[2] .. '/'
    for i = a, a + b - 1 do redis.call('ZREM', key, prefix .. text(i)) end
    for i = 0, a - 1 do take_slot(key, prefix .. text(i), now + lease * 1000, now) end
    local used = slots_used(key, now, lease * 1000 * 10)
    local grant = granted(limit[3] - used, want, need, floor)
    for i = a, a + grant - 1 do take_slot(key, prefix .. text(i), now + lease * 1000, now) end
    answers[e] = {grant, used + grant}
  else
    local leases = KEYS[at_key]
    at_key = at_key + 1
    local period, spent, held = read_budget(redis.call('GET', key), kind, now)
    local old = 0
    local all = redis.call('HGETALL', leases)
    for i = 1, #all, 2 do
      local amount, of, ends = string.match(all[i + 1], '^(%d+) (%d+) (%d+)$')
      local mine = all[i] == ARGV[2]
      if mine or tonumber(ends) <= now or tonumber(of) ~= period then
        if tonumber(of) == period then
          if mine then old = tonumber(amount) else held = held - tonumber(amount) end
        end
        redis.call('HDEL', leases, all[i])
      end
    end
    local keep = 0
    if b == period then
      spent = spent + a
      keep = c
    end
    held = held - old + keep
    local grant = granted(limit[3] - spent - held, want, need, floor)
    held, keep = held + grant, keep + grant
    if keep > 0 then
      redis.call('HSET', leases, ARGV[2], text(keep) .. ' ' .. text(period) .. ' ' .. text(now + lease * 1000))
      redis.call('PEXPIRE', leases, text(lease * 2 + 86400000))
    end
    write_budget(key, kind, period, spent, held)
    answers[e] = {grant, spent + held, period}
  end
end
return {1, answers}
