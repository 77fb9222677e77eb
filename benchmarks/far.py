"""A server that seems far away, and how many requests reached it.

    python -m benchmarks.far PORT SECONDS

is the other half of `Far`: the proxy, in a process of its own, so that it takes no time from what is measured. It
prints its port, and for each line it reads the count of requests so far.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Self

from ckptstore.testing.proxy import Proxy

_REQUEST = re.compile(rb"(?:GET|HEAD|PUT|POST|DELETE) /")


class Far:
    """A proxy before a server on 127.0.0.1; a context manager. `port` is where it listens."""

    def __init__(self, port: int, latency: float) -> None:
        self._command = [sys.executable, "-m", "benchmarks.far", str(port), str(latency)]
        self._before = 0

    def __enter__(self) -> Self:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(self._command, stdin=pipe, stdout=pipe, text=True)
        self.port = self._next_number()
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()

    def requests(self) -> int:
        """How many there were since this was called last."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        before, self._before = self._before, self._next_number()
        return self._before - before

    def _next_number(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())


def main(port: int, seconds: float) -> None:
    """Serve until nobody asks any more."""
    requests = 0

    def count(data: bytes) -> None:
        nonlocal requests
        requests += _REQUEST.match(data) is not None

    with Proxy(port, seconds) as proxy:
        proxy.answer = count
        print(proxy.port, flush=True)
        for _ in sys.stdin:
            print(requests, flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
