-- An instance is alive: how many are, itself among them. Also the proof that scripts and time work here.
-- KEYS: 1 instances. ARGV: 1 now or '', 2 instance, 3 ms after which a silent one is not counted
local now, silent = clock(), tonumber(ARGV[3])
redis.call('ZADD', KEYS[1], text(now), ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now - silent * 1000))
redis.call('PEXPIRE', KEYS[1], text(silent * 2))
return {redis.call('ZCARD', KEYS[1]), now, #cjson.decode('[1,2]')}
