-- Decides on keys that many hosts share. `central/mod.rs` packs what is asked, and reads what is returned.
--
-- KEYS[1] is the time at which the memory of this store began, the others are states. ARGV[i] asks about KEYS[i + 1].
--
-- Times are µs since 1970, and of token buckets ns from now on. Each number is a double, which is exact below 2^53. What is
-- to be an integer for Redis is formatted: numbers are passed on as 1e+15. Redis 5 and later replicate what is written, so
-- the time may be read before.

local call, try = redis.call, redis.pcall
local floor, ceil, min, max = math.floor, math.ceil, math.min, math.max
local format, match, sub = string.format, string.match, string.sub
local pack, read = struct.pack, struct.unpack

-- Products below it are exact, and so are their quotients rounded up or down: those have a bit more than they need.
local EXACT = 2 ^ 52
local NEVER = -1
local OVER, ADMITTED, FOREIGN, REFUSED = 0, 1, 2, 3
-- Where its limit begins in a question.
local LIMIT = 12
local LAST, QUOTA_HAS_ROOM, QUOTA_IS_OVER, PARTIAL = 1, 2, 4, 8

local time = call('TIME')
local now = time[1] * 1000000 + time[2]

-- Keys that the user of this connection may not read.
local hidden = {}

-- Whether a reply is an error.
local function failed(name, reply)
  local err = type(reply) == 'table' and reply.err
  if err and not string.find(err, 'WRONGTYPE', 1, true) then
    hidden[name] = true
  end
  return err
end

-- The text under a key, `false` if there is none, and nothing if there is something else.
local function text_of(name)
  local text = try('GET', name)
  if not failed(name, text) then
    return text
  end
end

local since = tonumber(match(text_of(KEYS[1]) or '', '^%d+$'))
if not since or since > now then
  -- No marker, a foreign one, or one of a clock that was ahead: the memory begins now. A replica cannot set it, nor can a
  -- full store. There it begins with each call, so that a bucket never has more than one unit.
  since = now
  try('SET', KEYS[1], format('%d', now))
end
local age = now - since

-- An algorithm is made when a call asks for it: most calls are about one. It is a table of functions of the
-- terms `t` of a limit, and of the state `s` under a key. A state is as of now. Two questions about one key have the same.
local make = {}

-- What counts units has a share of its limit until its memory is as long as the window: one unit, and what was earned since.
-- A window that has begun since then knows nothing of what was used before it, and has what was earned in it. So it is as if
-- all of the limit but one unit had been used when the memory began, and had come back evenly.
local function learns(kind)
  local wait, renews = kind.wait, kind.renews

  local function earned(t, s)
    if age >= t.window then
      return t.limit
    elseif s.start > since then
      return floor(t.limit * (now - s.start) / t.window)
    end
    return min(t.limit, 1 + floor(t.limit * age / t.window))
  end

  -- How long it takes to earn so many units.
  local function earns(t, units)
    return ceil(units * t.window / t.limit)
  end

  function kind.room(t, s)
    return max(0, min(t.limit - kind.used(t, s), earned(t, s) - kind.counted(s)))
  end

  function kind.wait(t, s, cost)
    local least = wait(t, s, cost)
    local units = kind.counted(s) + cost
    if age >= t.window or least == NEVER or units <= earned(t, s) then
      return least
    end
    local at = s.start > since and s.start + earns(t, units) or since + earns(t, units - 1)
    local edge = s.start + t.window
    if s.start > 0 and max(at, now + least) >= edge then
      -- The next window begins before that.
      at = edge + earns(t, cost)
    end
    -- What is used now may count less by then. So this may be too long, and never too short.
    return max(least, min(at, since + t.window) - now)
  end

  function kind.renews(t, s)
    return max(renews(t, s), t.window - age)
  end

  return kind
end

-- The token bucket (GCRA). Its state is when it will be full again, ns since 1970: digits that Redis stores as an integer.
-- Here it is the debt, ns: how long until then.
function make.g()
  local kind = {}

  function kind.terms(t, us, ns, burst)
    local interval = us * 1000 + ns
    if burst * interval > EXACT then
      -- It takes more than seven weeks to fill. Multiples of 1000 ns are multiples of 8, so that all sums stay exact.
      interval = (ns > 0 and us + 1 or us) * 1000
    end
    t.limit, t.interval, t.tolerance = burst, interval, burst * interval
    -- A state under another limit may owe more than this one's: an empty bucket, and as much that was used already.
    t.most = 2 * t.tolerance
    -- A bucket that was forgotten began with one unit.
    t.least = max(0, (burst - 1) * interval - age * 1000)
  end

  function kind.read(_, name)
    local text = text_of(name)
    local s = { kind = kind, name = name, debt = 0, exists = text ~= false, changed = false }
    if s.exists then
      local us, ns = match(text or '', '^(%d+)(%d%d%d)$')
      if not us or #us > 16 then
        return nil
      end
      s.debt = (us - now) * 1000 + ns
    end
    return s
  end

  local function debt(t, s)
    local debt, least, most = s.debt, t.least, t.most
    -- Not `min` and `max`: calls cost more.
    return debt > most and most or debt > least and debt or least
  end

  -- More than the bucket holds costs a tick more than all of it, as on a host.
  local function price(t, cost)
    return cost > t.limit and t.tolerance + 2 or cost * t.interval
  end

  function kind.adopt(t, s)
    local before = s.debt
    s.debt = min(before, t.most)
    return s.debt < before
  end

  function kind.room(t, s)
    return max(0, floor((t.tolerance - debt(t, s)) / t.interval))
  end

  function kind.wait(t, s, cost)
    if cost > t.limit then
      return NEVER
    end
    return max(0, ceil((debt(t, s) - (t.tolerance - cost * t.interval)) / 1000))
  end

  function kind.charge(t, s, cost)
    s.debt = debt(t, s) + cost * t.interval
  end

  function kind.owe(t, s, cost)
    local before = debt(t, s)
    s.debt = min(before + price(t, cost), t.most)
    return floor((s.debt - before) / t.interval)
  end

  function kind.refund(t, s, cost)
    s.debt = min(s.debt, t.most) - price(t, cost)
  end

  function kind.renews(t, s)
    return ceil(debt(t, s) / 1000)
  end

  function kind.reset(_, s)
    s.debt = 0
  end

  function kind.write(s)
    local us = floor(s.debt / 1000)
    local text = format('%d%03d', now + us, s.debt - us * 1000)
    return s.debt > 0 and text, now + ceil(s.debt / 1000)
  end

  return kind
end

-- The fixed window `index:count`, or the sliding one `index:previous:current`. Windows begin at multiples of their length.
local function window(slides)
  local kind = {}
  local form = slides and '^(%d+):(%d+):(%d+)$' or '^(%d+):()(%d+)$'

  function kind.terms(t, limit, length)
    t.limit, t.window = limit, length
    -- What is owed has as many bits as twice the limit, as on a host.
    t.most = 2 ^ select(2, math.frexp(2 * limit)) - 1
    -- Weights are products of a count and a time. Where those would not be exact, time has coarser units. They are rounded
    -- so that a weight is never too small.
    t.unit = 1
    while limit * length / t.unit > EXACT do
      t.unit = t.unit * 2
    end
    t.units = floor(length / t.unit)
  end

  function kind.read(t, name)
    local text, length = text_of(name), t.window
    local s = { kind = kind, name = name, length = length, index = floor(now / length), previous = 0, current = 0 }
    s.start = s.index * length
    s.elapsed = now - s.start
    if text == false then
      return s
    end
    s.exists = true
    local index, previous, current = match(text or '', form)
    index, current = tonumber(index), tonumber(current)
    if not index or index * length > EXACT then
      return nil
    end
    if index >= s.index then
      if index > s.index then
        -- The clock has gone back. Time stands still until it has caught up.
        s.index, s.elapsed = index, 0
      end
      s.previous, s.current = slides and tonumber(previous) or 0, current
    elseif slides and index == s.index - 1 then
      s.previous = current
    end
    -- Another limit's may be larger. What was owed was admitted to nobody, so the next window counts none of it.
    s.previous, s.current = min(s.previous, t.limit), min(s.current, t.most)
    s.start = s.index * length
    return s
  end

  local function weight(t, previous, elapsed)
    if previous == 0 then
      return 0
    end
    return ceil(previous * ceil((t.window - elapsed) / t.unit) / t.units)
  end

  function kind.used(t, s)
    return s.current + weight(t, s.previous, s.elapsed)
  end

  function kind.counted(s)
    return s.current
  end

  function kind.wait(t, s, cost)
    if cost > t.limit then
      return NEVER
    end
    if kind.used(t, s) + cost <= t.limit then
      return 0
    end
    local before, previous, current, elapsed = 0, s.previous, s.current, s.elapsed
    if current + cost > t.limit then
      -- Not in this window.
      before = t.window - elapsed
      previous, current, elapsed = slides and min(current, t.limit) or 0, 0, 0
    end
    if current + weight(t, previous, elapsed) + cost <= t.limit then
      return before
    end
    -- How much before the end of the window what came before it weighs so little.
    local left = floor((t.limit - current - cost) * t.units / previous) * t.unit
    return before + t.window - elapsed - left
  end

  function kind.charge(_, s, cost)
    s.current = s.current + cost
  end

  function kind.owe(t, s, cost)
    local before = s.current
    s.current = min(before + cost, t.most)
    return s.current - before
  end

  function kind.refund(_, s, cost)
    s.current = max(0, s.current - cost)
  end

  -- When all of it counts no more.
  local function ends(s)
    if s.current > 0 then
      return (s.index + (slides and 2 or 1)) * s.length
    end
    return s.previous > 0 and (s.index + 1) * s.length or now
  end

  function kind.renews(_, s)
    return ends(s) - now
  end

  function kind.reset(_, s)
    s.previous, s.current = 0, 0
  end

  function kind.write(s)
    local text = format('%d:%d', s.index, s.current)
    if slides then
      text = format('%d:%d:%d', s.index, s.previous, s.current)
    end
    local ending = ends(s)
    return ending > now and text, ending
  end

  return learns(kind)
end

function make.f()
  return window(false)
end

function make.s()
  return window(true)
end

-- Parts of a window, `index:count,count,…`: the part that time was in, its count, and those of the parts before. As many
-- parts as the window has count, and the one that time is in. The name of the key tells their length and number.
function make.p()
  local kind = {}

  function kind.terms(t, limit, part, parts)
    t.limit, t.part, t.window, t.counters = limit, part, part * parts, parts + 1
  end

  function kind.read(t, name)
    local text, index, counters = text_of(name), floor(now / t.part), t.counters
    local s = { kind = kind, name = name, part = t.part, counters = counters, index = index, sum = 0, start = 0 }
    for i = 1, counters do
      s[i] = 0
    end
    if text == false then
      return s
    end
    s.exists = true
    local last, counts = match(text or '', '^(%d+):([%d,]*%d)$')
    last = tonumber(last)
    if not last or last * t.part > EXACT then
      return nil
    end
    -- If the clock has gone back, time stands still until it has caught up.
    s.index = max(index, last)
    local i = s.index - last
    for count in string.gmatch(counts, '%d+') do
      i = i + 1
      if i > counters then
        break
      end
      s[i] = tonumber(count)
      s.sum = s.sum + s[i]
    end
    if s.sum > EXACT then
      return nil
    end
    return s
  end

  function kind.counted(s)
    return s.sum
  end

  function kind.used(_, s)
    return s.sum
  end

  -- When the i-th of the parts counts no more.
  local function ends(s, i)
    return (s.index - (i - 1) + s.counters) * s.part
  end

  function kind.wait(t, s, cost)
    if cost > t.limit then
      return NEVER
    end
    local missing = s.sum + cost - t.limit
    if missing <= 0 then
      return 0
    end
    local i = s.counters
    while missing > s[i] do
      missing = missing - s[i]
      i = i - 1
    end
    return ends(s, i) - now
  end

  function kind.charge(_, s, cost)
    s[1], s.sum = s[1] + cost, s.sum + cost
  end

  function kind.owe(t, s, cost)
    local owed = min(cost, max(0, 2 * t.limit - s.sum))
    kind.charge(t, s, owed)
    return owed
  end

  function kind.refund(_, s, cost)
    -- The latest first: what was charged by mistake is more likely there.
    for i = 1, s.counters do
      local back = min(cost, s[i])
      s[i], s.sum, cost = s[i] - back, s.sum - back, cost - back
    end
  end

  local function ending(s)
    for i = 1, s.counters do
      if s[i] > 0 then
        return ends(s, i)
      end
    end
    return now
  end

  function kind.renews(_, s)
    return ending(s) - now
  end

  function kind.reset(_, s)
    kind.refund(nil, s, s.sum)
  end

  function kind.write(s)
    if s.sum == 0 then
      return nil
    end
    local counts, last = {}, 0
    for i = 1, s.counters do
      counts[i] = format('%d', s[i])
      last = s[i] > 0 and i or last
    end
    return format('%d:', s.index) .. table.concat(counts, ',', 1, last), ending(s)
  end

  return learns(kind)
end

-- The log, a sorted set: a member for each unit, whose score is when it was used. A member is that time as well, or one
-- more than the last one: so all differ, and are in the order of their use, whatever the clock does.
--
-- A state is what is to be done to the set: `dropped` of its oldest, `popped` of its latest, and `added` ones. It has at most
-- as many as the limit, so that reading some of them one by one costs less than reading all.
function make.l()
  local kind = {}

  function kind.terms(t, limit, length)
    t.limit, t.window = limit, length
  end

  function kind.read(t, name)
    local s = { kind = kind, name = name, length = t.window, at = now, last = 0, start = 0 }
    s.stored, s.dropped, s.popped, s.added = 0, 0, 0, 0
    local latest = try('ZREVRANGE', name, 0, 0, 'WITHSCORES')
    if failed(name, latest) then
      return nil
    end
    if not latest[1] then
      return s
    end
    s.exists = true
    local score = tonumber(latest[2])
    s.last = tonumber(match(latest[1], '^%d+$'))
    if not s.last or s.last > EXACT or score > EXACT then
      return nil
    end
    if score + s.length > now then
      -- If the clock has gone back, time stands still until it has caught up.
      s.at = max(now, score)
      s.stored = call('ZCOUNT', name, format('(%d', s.at - s.length), '+inf')
    end
    return s
  end

  function kind.counted(s)
    return s.stored - s.dropped - s.popped + s.added
  end

  function kind.used(_, s)
    return kind.counted(s)
  end

  -- When the unit leaves that has so many before it.
  local function leaves(s, before)
    local rank = s.dropped + before
    if rank >= s.stored - s.popped then
      return s.at + s.length
    end
    -- Counted from the end: those that have left already are still in the set.
    local found = call('ZRANGE', s.name, rank - s.stored, rank - s.stored, 'WITHSCORES')
    return tonumber(found[2]) + s.length
  end

  function kind.wait(t, s, cost)
    if cost > t.limit then
      return NEVER
    end
    local missing = kind.counted(s) + cost - t.limit
    if missing <= 0 or cost == 0 then
      return 0
    end
    return leaves(s, missing - 1) - now
  end

  function kind.charge(_, s, cost)
    s.added = s.added + cost
  end

  function kind.owe(t, s, cost)
    cost = min(cost, t.limit)
    s.added = s.added + cost
    -- Who has used more than the log remembers waits for the last ones of it.
    local excess = max(0, kind.counted(s) - t.limit)
    local dropped = min(excess, s.stored - s.dropped - s.popped)
    s.dropped, s.added = s.dropped + dropped, s.added - (excess - dropped)
    return cost
  end

  function kind.refund(_, s, cost)
    local back = min(cost, s.added)
    s.added = s.added - back
    s.popped = s.popped + min(cost - back, s.stored - s.dropped - s.popped)
  end

  function kind.renews(_, s)
    local used = kind.counted(s)
    return used > 0 and leaves(s, used - 1) - now or 0
  end

  function kind.reset(_, s)
    s.popped, s.added = s.stored - s.dropped, 0
  end

  function kind.apply(s)
    local kept = kind.counted(s)
    if kept == 0 then
      return s.exists and try('DEL', s.name)
    end
    local ending = leaves(s, kept - 1)
    if s.added > 0 then
      -- First of all, as a full store refuses nothing but this, and that only where nothing was written before.
      local score, first = format('%d', s.at), max(s.at, s.last + 1)
      local units = { 'ZADD', s.name }
      for i = 0, s.added - 1 do
        units[#units + 1] = score
        units[#units + 1] = format('%d', first + i)
      end
      local done = try(unpack(units))
      if type(done) == 'table' and done.err then
        return done
      end
    end
    if s.popped > 0 then
      try('ZREMRANGEBYRANK', s.name, -(s.popped + s.added), -(s.added + 1))
    end
    -- All that have left, and what was dropped.
    try('ZREMRANGEBYRANK', s.name, 0, -(kept + 1))
    return try('PEXPIREAT', s.name, format('%d', ceil(ending / 1000)))
  end

  return learns(kind)
end

-- What is asked, and the state that it is asked of; none where there is a foreign value.
local count = #ARGV
local questions, states, known, kinds, limits = {}, {}, {}, {}, {}

-- The terms of a limit: most questions of a call have the same.
local function terms_of(limit)
  local t = limits[limit]
  if not t then
    local letter, a, b, c = read('>c1I8I8I8', limit)
    local kind = kinds[letter] or make[letter]()
    t = { kind = kind }
    kind.terms(t, a, b, c)
    kinds[letter], limits[limit] = kind, t
  end
  return t
end

for i = 1, count do
  local name, argument = KEYS[i + 1], ARGV[i]
  local act, role, flags, cost = read('>c1c1BI8', argument)
  local t = terms_of(sub(argument, LIMIT))
  local s = known[name]
  if s == nil then
    s = t.kind.read(t, name) or false
    known[name] = s
    states[#states + 1] = s or nil
  end
  -- With all of its fields, as a table that grows is made anew each time.
  questions[i] = {
    kind = t.kind, terms = t, act = act, role = role, flags = flags, cost = cost, first = 1, changes = false,
    -- A name has the algorithm in it, so that no two share one.
    state = s and s.kind == t.kind and s,
    status = hidden[name] and REFUSED or FOREIGN, charged = 0, remaining = 0, wait = 0, renews = 0,
  }
end

-- Does to a key what is asked, and notes how it stands after that: whether there was room.
local function ask(q, act, cost)
  local kind, t, s = q.kind, q.terms, q.state
  local asked = cost
  if bit.band(q.flags, PARTIAL) ~= 0 and act ~= 'o' and act ~= 'r' then
    -- A part is enough, if it is one unit.
    asked = min(cost, 1)
    cost = max(asked, min(cost, kind.room(t, s)))
  end
  local admitted, charged, changes = true, 0, act ~= 'p' and cost > 0
  if act == 'r' or act == 'z' then
    -- Nothing comes back where nothing was used.
    changes = (changes or act == 'z') and (s.exists or s.changed)
    if changes then
      kind[act == 'r' and 'refund' or 'reset'](t, s, cost)
    end
  else
    admitted = kind.wait(t, s, cost) == 0
    if changes and admitted then
      kind.charge(t, s, cost)
      charged = cost
    elseif changes and act == 'o' then
      charged = kind.owe(t, s, cost)
    elseif changes then
      -- What another limit owed more is forgotten by who asks, and not by who looks.
      changes = kind.adopt and kind.adopt(t, s)
    end
  end
  if changes then
    s.changed, q.changes = true, true
  end
  q.status, q.charged = admitted and ADMITTED or OVER, charged
  q.remaining, q.wait, q.renews = kind.room(t, s), kind.wait(t, s, asked), kind.renews(t, s)
  return admitted
end

-- What gives something back is never denied.
local function is_over(q)
  return q.status ~= ADMITTED and (q.act == 't' or q.act == 'p')
end

-- Whether a decision is over, and whether that is due to its quotas alone: all of them are over, those that are kept
-- elsewhere as well.
local function over(first, last)
  local flags = questions[last].flags
  local quotas, room = bit.band(flags, QUOTA_IS_OVER) ~= 0, bit.band(flags, QUOTA_HAS_ROOM) ~= 0
  for i = first, last do
    local q = questions[i]
    if q.role == 'e' and is_over(q) then
      return true, false
    elseif q.role == 'q' then
      quotas, room = true, room or not is_over(q)
    end
  end
  return quotas and not room, true
end

-- Charges all keys of a decision or none, as `settle` of `decider.rs` does.
local function decide(first, last)
  local several = first < last or bit.band(questions[last].flags, QUOTA_IS_OVER) ~= 0
  local whole = true
  for i = first, last do
    whole = whole and questions[i].state
  end
  if several then
    for i = first, last do
      local q = questions[i]
      if q.state then
        ask(q, 'p', q.cost)
      end
    end
  end
  if not whole then
    return
  end
  if not several or not over(first, last) then
    for i = first, last do
      local q = questions[i]
      if not several or q.act ~= 'p' then
        ask(q, q.act, q.cost)
        if q.role == 'e' and is_over(q) then
          break
        end
      end
    end
    if several and over(first, last) then
      -- A key came twice, and had no room for the second one.
      for i = first, last do
        local q = questions[i]
        if q.act == 't' and q.charged > 0 then
          ask(q, 'r', q.charged)
        end
      end
    end
  end
  local denied, by_quotas = over(first, last)
  if denied and by_quotas then
    -- What is denied may be what was used already: a debit after the fact.
    for i = first, last do
      local q = questions[i]
      if q.role == 'q' and q.act == 't' then
        ask(q, 'o', q.cost)
      end
    end
  end
end

local first = 1
for i = 1, count do
  questions[i].first = first
  if i == count or bit.band(questions[i].flags, LAST) ~= 0 then
    decide(first, i)
    first = i + 1
  end
end

-- Writes what has changed. A store refuses the first write of a script or none of them, so no decision is written by half.
local refused = false
for _, s in ipairs(states) do
  if s.changed then
    local done
    if s.kind.apply then
      done = s.kind.apply(s)
    else
      local text, ending = s.kind.write(s)
      if text then
        -- The ms in which it ends still has it.
        done = try('SET', s.name, text, 'PXAT', format('%d', ceil(ending / 1000)))
      elseif s.exists then
        -- As good as new.
        done = try('DEL', s.name)
      end
    end
    refused = type(done) == 'table' and done.err
    if refused then
      break
    end
    s.changed = false
  end
end
if refused then
  local from = {}
  for i = 1, count do
    local q = questions[i]
    if q.changes and q.state.changed then
      from[q.first] = true
    end
  end
  for i = 1, count do
    local q = questions[i]
    if from[q.first] then
      q.status, q.charged, q.remaining, q.wait, q.renews = REFUSED, 0, 0, 0, 0
    end
  end
end

local answers = { pack('>I8', now) }
for i = 1, count do
  local q = questions[i]
  answers[i + 1] = pack('>BI8I8i8I8', q.status, q.charged, q.remaining, q.wait, q.renews)
end
return table.concat(answers)
