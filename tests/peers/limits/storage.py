"""A storage of the package `limits` that asks limiter-serve: for its own tests (`cargo xtask conformance`).

Its storages count, and its strategies decide by the counts. Here limiter-serve decides, and the counts are what remains.
"""

import http.client
import json
import socket
import time

from limits.storage import MovingWindowSupport, SlidingWindowCounterSupport, Storage

# More than any test counts in a fixed window: `incr` brings no limit.
COUNT = 1_000_000
# The largest limit that limiter-serve keeps a log of.
LOG = 120


class Connection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self.path)


class LimiterServeStorage(Storage, MovingWindowSupport, SlidingWindowCounterSupport):
    STORAGE_SCHEME = ["limiter-serve"]

    def __init__(self, uri, wrap_exceptions=False, **_):
        super().__init__(uri, wrap_exceptions)
        self.path = uri.split("://")[1]
        self.known = {}

    @property
    def base_exceptions(self):
        return (OSError, http.client.HTTPException)

    def _ask(self, act, key, algorithm, limit, expiry, cost=1):
        self.known[key, algorithm] = limit, expiry
        item = {"key": f"{algorithm} {key}", "act": act, "cost": cost, "algorithm": algorithm}
        item |= {"limit": limit, "period": f"{expiry}s"}
        connection = Connection(self.path)
        connection.request("POST", "/v1/decide", json.dumps({"items": [item]}))
        answer = json.loads(connection.getresponse().read())
        connection.close()
        return answer["items"][0]

    def _peek(self, key, algorithm, cost=1):
        if (key, algorithm) not in self.known:
            return 0, 0
        limit, expiry = self.known[key, algorithm]
        found = self._ask("peek", key, algorithm, limit, expiry, cost)
        return limit - found["remaining"], found.get("reset_s", 0)

    def incr(self, key, expiry, amount=1):
        return COUNT - self._ask("owe", key, "fixed-window", COUNT, expiry, amount)["remaining"]

    def get(self, key):
        return self._peek(key, "fixed-window")[0]

    def get_expiry(self, key):
        return time.time() + self._peek(key, "fixed-window")[1]

    def check(self):
        connection = Connection(self.path)
        connection.request("GET", "/healthz")
        found = connection.getresponse().status
        connection.close()
        return found == 200

    def reset(self):
        for key, algorithm in list(self.known):
            self._ask("reset", key, algorithm, *self.known[key, algorithm])
        count = len(self.known)
        self.known.clear()
        return count

    def clear(self, key):
        for known, algorithm in list(self.known):
            if known == key:
                self._ask("reset", key, algorithm, *self.known[key, algorithm])

    def _moving(self, limit):
        return "sliding-log" if limit <= LOG else "sub-windows"

    def acquire_entry(self, key, limit, expiry, amount=1):
        return self._ask("take", key, self._moving(limit), limit, expiry, amount)["allowed"]

    def get_moving_window(self, key, limit, expiry):
        self.known.setdefault((key, self._moving(limit)), (limit, expiry))
        count, reset = self._peek(key, self._moving(limit))
        return time.time() + reset - expiry if count else time.time(), count

    def acquire_sliding_window_entry(self, key, limit, expiry, amount=1):
        return self._ask("take", key, "sliding-window", limit, expiry, amount)["allowed"]

    def get_sliding_window(self, key, expiry):
        count, reset = self._peek(key, "sliding-window")
        return 0, 0.0, count, reset

    def clear_sliding_window(self, key, expiry):
        self.clear(key)
