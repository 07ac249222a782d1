-- Runs a script of others and ours at one time, that of the store or another one. What theirs admits is charged to ours as
-- well, whether it has room or not: so a difference stays one. The texts in braces are put in.
--
-- KEYS: two of ours, theirs. ARGV: a time or nothing in seconds and µs, our question if theirs admits, our question if it
-- does not, theirs.
local real = redis
local time = ARGV[1] == '' and real.call('TIME') or { ARGV[1], ARGV[2] }
local function at(call)
  return function(command, ...)
    return command == 'TIME' and time or call(command, ...)
  end
end
local redis = { call = at(real.call), pcall = at(real.pcall) }
local function theirs(KEYS, ARGV)
  {THEIRS}
end
local function ours(KEYS, ARGV)
  {OURS}
end
local result = theirs({ select(3, unpack(KEYS)) }, { select(5, unpack(ARGV)) })
local admitted = {ADMITS}
return { admitted and 1 or 0, ours({ KEYS[1], KEYS[2] }, { admitted and ARGV[3] or ARGV[4] }) }
