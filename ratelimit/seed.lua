-- At least so much was spent of a budget in the current period: a store that lost it, or never knew, learns it again.
-- KEYS: 1 budget. ARGV: 1 now or '', 2 kind 'd' or 'm', 3 micro-USD. Answer: what is spent now.
local now = clock()
local period, spent, held = read_budget(redis.call('GET', KEYS[1]), ARGV[2], now)
spent = math.max(spent, tonumber(ARGV[3]))
write_budget(KEYS[1], ARGV[2], period, spent, held)
return spent
