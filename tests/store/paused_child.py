"""A writer that stops, as by SIGSTOP, before some operation. Arguments: a site as JSON, and which operation."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from dataclasses import replace

import ckptstore
from ckptstore.storage.wrappers import Intercepted
from ckptstore.store import Store
from ckptstore.testing.audit import Site, state_of


def stop():
    """This thread too: the system may begin with another one."""
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(0.2)


class Pausing(Intercepted):
    """Stops its process before or after the nth put."""

    def __init__(self, storage, n, *, after):
        super().__init__(storage)
        self.n, self.after, self.puts = n, after, 0

    def intercept(self, verb, key, operation):
        self.puts += verb == "put"
        pausing = verb == "put" and self.puts == self.n
        if pausing and not self.after:
            stop()
        came = operation()
        if pausing and self.after:
            stop()
        return came


def main(site, n, after):
    parts = Site(**site).parts()
    pausing = Pausing(parts.storage, n, after=after)
    with Store(replace(parts, storage=pausing), "main") as store:
        try:
            store.commit(state_of("main", 7), step=7)
        except ckptstore.CkptStoreError as error:
            os.write(1, type(error).__name__.encode())
        else:
            os.write(1, b"committed")


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
