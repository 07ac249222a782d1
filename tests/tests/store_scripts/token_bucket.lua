-- The token bucket as textbooks have it: tokens, and when they were counted. ARGV: tokens per second, burst, cost.
local rate, burst, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1000000
local bucket = redis.call('HMGET', KEYS[1], 'tokens', 'time')
local tokens, before = tonumber(bucket[1] or burst), tonumber(bucket[2] or now)
tokens = math.min(burst, tokens + (now - before) * rate)
local admitted = cost <= tokens
if admitted then
  tokens = tokens - cost
end
redis.call('HSET', KEYS[1], 'tokens', string.format('%.17g', tokens), 'time', string.format('%.17g', now))
return admitted and 1 or 0
