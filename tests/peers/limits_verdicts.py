"""Judges a trace by the strategies of the package `limits`, with a clock that stands where the trace says.

stdin: {"strategy", "limit", "window": s, "hits": [[s, cost], ...]}; stdout: a list of verdicts.
"""

import json
import sys
import time

now = 0.0
time.time = lambda: now

from limits import RateLimitItemPerSecond, storage, strategies  # noqa: E402  the clock comes first

case = json.load(sys.stdin)
strategy = {
    "fixed-window": strategies.FixedWindowRateLimiter,
    "moving-window": strategies.MovingWindowRateLimiter,
    "sliding-window-counter": strategies.SlidingWindowCounterRateLimiter,
}[case["strategy"]](storage.MemoryStorage())
item = RateLimitItemPerSecond(case["limit"], case["window"])
verdicts = []
for now, cost in case["hits"]:
    verdicts.append(strategy.hit(item, "key", cost=cost))
print(json.dumps(verdicts))
