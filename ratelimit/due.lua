-- Which reservations nobody has kept alive: their ids, at most 32. KEYS: 1 sweep set. ARGV: 1 now or ''
return redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', text(clock()), 'LIMIT', '0', '32')
