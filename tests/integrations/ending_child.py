"""Ranks of jobs, each of which may end, stop or be killed as it likes: forked, so that all is imported once.

Reads lines of JSON, each a list of jobs that run at the same time: [scenario, count of ranks, folder, arguments]. The
folder has a store. Answers with what came of each job's ranks: [exit code, values that it said, what is on its stderr].
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch._dynamo
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

import ckptstore
import ckptstore.operations.committing.commit
import ckptstore.operations.ranks.together
from ckptstore.integrations.dcp import StoreWriter
from ckptstore.operations.committing import handles
from ckptstore.storage.local import LocalStorage

SILENCE = 4
"""Seconds that a group waits for a rank."""

LONGEST_LIFE = 60

SCENARIOS: dict[str, Callable[..., Any]] = {}


def scenario(function):
    SCENARIOS[function.__name__] = function
    return function


def say(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def state_of(step, *, sharded=True):
    """What all have, and what each has for itself."""
    weights = (torch.arange(1.0, 5002.0) * (step + 1)).view(-1, 3)
    if sharded:
        mesh = DeviceMesh("cpu", list(range(dist.get_world_size())))
        weights = distribute_tensor(weights, mesh, [Shard(0)], src_data_rank=None)
    return {"weights": weights, "own": torch.full((3000,), 10.0 * step + dist.get_rank())}


@scenario
def leave(place, ends):
    """While a commit is in flight, in several ways."""
    end = ends[dist.get_rank()]
    gate = threading.Event()
    store = ckptstore.open(place)
    store.commit(state_of(0), step=0)
    if end in {"refuse", "die"}:
        before_put({"refuse": refuse, "die": die}[end])
    if end != "wait":
        before_put(lambda: gate.wait(LONGEST_LIFE))
        threading._register_atexit(gate.set)  # type: ignore[attr-defined]  # called before all others
    handle = store.commit_async(state_of(1), step=1)
    if end == "wait":
        say(came_of(handle.result))
    if end == "exit":
        sys.exit(3)
    if end == "raise":
        raise KeyError("odd")


@scenario
def fall_silent(place, how, who):
    """One rank stops while it writes."""
    store = ckptstore.open(place)
    store.commit(state_of(0), step=0)
    if dist.get_rank() == who:
        before_put(lambda: os.kill(os.getpid(), signal.SIGSTOP))
    begun = time.monotonic()
    say([came_of({"commit": commit, "commit_async": commit_async, "dcp": save}[how], store), time.monotonic() - begun])
    os._exit(0)


def commit(store):
    store.commit(state_of(1), step=1)


def commit_async(store):
    store.commit_async(state_of(1), step=1).result()


def save(store):
    dcp_save(state_of(1), storage_writer=StoreWriter(store, step=1))


@scenario
def destroy(place, when, who, sharded):
    """The process group, on some ranks, while a commit is in flight; then go on alone, and in a new group."""
    rank, size, group = dist.get_rank(), dist.get_world_size(), dist.group.WORLD
    gate = threading.Event()
    store = ckptstore.open(place)
    store.commit(state_of(0), step=0)
    if rank in who:
        {"starting": before_thread, "writing": before_put}[when](lambda: gate.wait(LONGEST_LIFE))
    handle = store.commit_async(state_of(1, sharded=sharded), step=1)
    if rank in who:
        dist.destroy_process_group()
    begun = time.monotonic()
    gate.set()
    say([came_of(handle.result), time.monotonic() - begun])
    if rank not in who:
        dist.destroy_process_group()
    say(came_of(lambda: store.commit({"alone": rank}, step=2, run=f"alone {rank}")))
    say(came_of(lambda: store.commit_async({"alone": rank}, step=3, run=f"alone {rank}").result()))
    say(came_of(lambda: store.commit({"alone": rank}, step=9, process_group=group)))
    join(f"{place}.again", rank, size)
    say(came_of(lambda: store.commit({"alone": rank}, step=9, process_group=group)))
    say(came_of(lambda: store.commit_async(state_of(4), step=4).result()))
    store.close()


def refuse():
    raise ckptstore.StorageFull("no space")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def came_of(act, *arguments):
    try:
        act(*arguments)
    except BaseException as error:  # noqa: BLE001 - it is what came of it
        return f"{type(error).__name__}: {error}"
    return "done"


def before_put(act):
    put = LocalStorage.put

    def acting(self, key, parts):
        if key.startswith("packs/"):
            act()
        put(self, key, parts)

    LocalStorage.put = acting  # type: ignore[method-assign]


def join(rendezvous, rank, count):
    dist.init_process_group(
        "gloo",
        init_method=f"file://{rendezvous}",
        rank=rank,
        world_size=count,
        timeout=timedelta(seconds=SILENCE),
    )


def before_thread(act):
    start = handles.start_thread

    def starting(work, name):
        def acting():
            act()
            work()

        return start(acting, name)

    handles.start_thread = starting


def live(name, rank, count, folder, arguments):
    signal.alarm(LONGEST_LIFE)
    for stream in ("stdout", "stderr"):
        with Path(folder, f"{rank}.{stream}").open("w") as file:
            os.dup2(file.fileno(), getattr(sys, stream).fileno())
    join(f"{folder}/rendezvous", rank, count)
    SCENARIOS[name](f"{folder}/store", **arguments)


def reap(count):
    """Pid → exit code of so many processes; those that stop are killed when the others have ended."""
    codes: dict[int, int] = {}
    while len(codes) < count:
        pid, status = os.waitpid(-1, os.WUNTRACED)
        codes[pid] = -os.WSTOPSIG(status) if os.WIFSTOPPED(status) else os.waitstatus_to_exitcode(status)
    for pid, code in codes.items():
        if code == -signal.SIGSTOP:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    return codes


def output_of(folder, rank):
    out, error = (Path(folder, f"{rank}.{stream}").read_text() for stream in ("stdout", "stderr"))
    return [json.loads(line) for line in out.splitlines()], error


def main():
    warnings.simplefilter("ignore")
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        jobs, ranks = json.loads(line), {}
        for name, count, folder, arguments in jobs:
            for rank in range(count):
                pid = os.fork()
                if pid == 0:
                    live(name, rank, count, folder, arguments)
                    return
                ranks[folder, rank] = pid
        codes = reap(len(ranks))
        say(
            [
                [[codes[ranks[folder, rank]], *output_of(folder, rank)] for rank in range(count)]
                for _, count, folder, _ in jobs
            ]
        )


if __name__ == "__main__":
    main()
