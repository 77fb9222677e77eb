"""Writers that are made to be killed. Reads lines of JSON, [site, seed], forks a writer for each, says its pid.

Torch and all that a writer needs is imported once, before the forks. A writer says what it is about to do and what is
done, a line each: "begin <verb> <run> <step>" and "done <verb> <run> <step>".
"""

from __future__ import annotations

import json
import os
import random
import sys
from itertools import count

import psycopg  # noqa: F401 - once, for all of them
import s3fs  # noqa: F401

import ckptstore
import ckptstore.operations.committing.background
import ckptstore.operations.committing.commit
import ckptstore.operations.loading.checkout
import ckptstore.operations.loading.restore
from ckptstore.store import Store
from ckptstore.testing.audit import Site, state_of

RUNS = ("main", "other")


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


class Writer:
    def __init__(self, site, seed):
        self.random = random.Random(seed)
        parts = Site(**site).parts(create=True)
        self.stores = {run: Store(parts, run) for run in RUNS}
        self.next = {run: 1 + (store.latest() or 0) for run, store in self.stores.items()}
        say("begin work - 0")

    def work(self):
        acts = [self.commit, self.commit_in_background, self.drop, self.keep_last, self.collect, self.tag, self.untag]
        for _ in count():
            self.random.choices(acts, [4, 4, 2, 1, 2, 1, 1])[0](self.random.choice(RUNS))

    def commit(self, run):
        step = self.new_step("commit", run)
        self.stores[run].commit(state_of(run, step), step=step)
        say("done commit", run, step)

    def commit_in_background(self, run):
        step = self.new_step("commit", run)
        handle = self.stores[run].commit_async(state_of(run, step), step=step)
        self.collect(run)
        handle.result()
        say("done commit", run, step)

    def new_step(self, verb, run):
        step = self.next[run]
        self.next[run] += 1
        say("begin", verb, run, step)
        return step

    def drop(self, run):
        untagged = set(self.stores[run].steps()) - set(self.stores[run].tags().values())
        if untagged:
            step = self.random.choice(sorted(untagged))
            say("begin delete", run, step)
            self.stores[run].delete(step)
            say("done delete", run, step)

    def keep_last(self, run):
        if self.stores[run].latest() is None:
            return
        plan = self.stores[run].plan_gc(keep=ckptstore.KeepLast(3), grace=0)
        for commit in plan.delete:
            say("begin delete", run, commit.step)
        plan.execute()

    def collect(self, run):
        self.stores[run].gc(grace=0)

    def tag(self, run):
        newest = self.stores[run].latest()
        if newest is not None:
            self.stores[run].tag("kept", newest)
            say("done tag", run, newest)

    def untag(self, run):
        if "kept" in self.stores[run].tags():
            self.stores[run].untag("kept")


def main():
    say("ready")
    for line in sys.stdin:
        site, seed = json.loads(line)
        pid = os.fork()
        if pid == 0:
            try:
                Writer(site, seed).work()
            except BaseException as error:  # noqa: BLE001 - a writer that ends by itself is a failure to tell
                say("failed", type(error).__name__, str(error).replace("\n", " "))
            os._exit(1)
        say("pid", pid)
        os.waitpid(pid, 0)
        say("dead")


if __name__ == "__main__":
    main()
