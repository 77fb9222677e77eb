"""One rank for the tests: rank.py FOLDER RANK SIZE [SCENARIO…]; prints what each scenario came to, as JSON."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard, distribute_tensor

import ckptstore
from ckptstore import CheckpointManager, SaveAt, SaveIf
from ckptstore.storage.local import LocalStorage


def state(step: int) -> dict[str, Any]:
    return {"w": torch.full((3000,), float(step))}


def signalled(store, rank):
    """Rank 1 gets a signal at step 4."""
    saved = []
    with CheckpointManager(store, 3) as manager:
        for step in range(20):
            if (rank, step) == (1, 4):
                os.kill(os.getpid(), signal.SIGTERM)
            if manager.save(step, state(step)):
                saved.append(step)
            if manager.reached_preemption(step):
                break
    return saved, step


def policies(store, rank):
    """Each has another policy, and asks in another way."""
    with CheckpointManager(store, [SaveAt({1, 4}), SaveAt({2})][rank]) as manager:
        asked = [rank == 0 or manager.should_save(step) for step in range(6) if manager.save(step, state(step))]
    return len(asked), store.steps()


def steps(store, rank):
    """They are not at the same step."""
    with CheckpointManager(store, 1) as manager:
        manager.save(3 + rank, state(0))


def failing(store, rank):
    """What rank 1 stores in the background fails."""
    put = LocalStorage.put
    with CheckpointManager(store, 1) as manager:
        if rank == 1:
            LocalStorage.put = refuse  # type: ignore[method-assign]
        manager.save(0, state(100 + rank))
        if rank == 1:
            wait_for_failure(manager)
            LocalStorage.put = put  # type: ignore[method-assign]
        try:
            manager.save(1, state(1))
        finally:
            manager.save(2, state(2))  # they are together again


def shards(store, rank):
    """Each has a part of a tensor, and something for itself; both change at once."""
    weight = distribute_tensor(torch.zeros(3000), DeviceMesh("cpu", [0, 1]), [Shard(0)])
    own: dict[str, Any] = {"w": weight, "position": 0}
    with CheckpointManager(store, 2) as manager:
        for step in range(5):
            weight.fill_(step)
            own["position"] = 10 * step + rank
            manager.save(step, own)
        weight.fill_(-1)
        manager.join()
        manager.restore(2, own)
    return store.steps(), weight.to_local().unique().tolist(), own["position"]


def replicas(store, rank):
    """Both are told that they have the same."""
    for step, background in enumerate([True, False]):
        with CheckpointManager(store, 1, async_=background, replicated="w") as manager:
            manager.save(2 * step, state(rank))
            manager.save(2 * step + 1, state(rank))
    return [(path, entry.shape) for step in store.steps() for path, entry in store.manifest(step).items()]


def wait_for_failure(manager):
    assert manager._saves.flight.exception()


def refuse(*_):
    raise ckptstore.StorageFull("no space")


def policy_fails(store, rank):
    """Only rank 0 is asked, and fails."""
    with CheckpointManager(store, SaveIf(lambda moment: moment.step / 0 > 1)) as manager:
        manager.save(1, state(1))


def newest(store, rank):
    """They know other steps."""
    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    with ckptstore.open(store.url, run=f"{store.run}-{rank}") as own, CheckpointManager(own, 1) as manager:
        for step in range(3 + rank):
            own.commit(state(step), step=step, process_group=alone)
        return manager.latest_step(), int(manager.restore()["w"][0])


def nothing(store, rank):
    """There is nothing to restore."""
    with CheckpointManager(store, 1) as manager:
        manager.restore()


def looking_fails(store, rank):
    """Rank 0 cannot ask the catalog."""
    with CheckpointManager(store, 1) as manager:
        store.latest = refuse
        manager.restore()


def alone(store, rank):
    """Each is in a group of its own."""
    groups = [dist.new_group([0]), dist.new_group([1])]
    with (
        ckptstore.open(store.url, run=f"{store.run}-{rank}") as own,
        CheckpointManager(own, 100, process_group=groups[rank]) as manager,
    ):
        if rank == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        return [manager.save(step, state(step)) for step in range(1 + rank, 4)]


def gone(store, rank):
    """Rank 1 is killed."""
    with CheckpointManager(store, 1) as manager:
        for step in range(5):
            if (rank, step) == (1, 3):
                os.kill(os.getpid(), signal.SIGKILL)
            manager.save(step, state(step))


def kept(store, rank):
    """Old steps are dropped while both go on."""
    with CheckpointManager(store, 1, keep=ckptstore.KeepLast(2)) as manager:
        for step in range(6):
            manager.save(step, state(step))
            manager.join()
            dist.barrier()
        return store.steps()


def main(folder: str, number: str, size: str, *scenarios: str) -> None:
    rank = int(number)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{scenarios[0]}", rank=rank, world_size=int(size))
    for name in scenarios:
        dist.barrier()
        with ckptstore.open(f"{folder}/store", run=name) as store:
            try:
                found = globals()[name](store, rank)
            except Exception as error:  # noqa: BLE001 - it is what came of it
                found = type(error).__name__, str(error)
        sys.stdout.write(json.dumps(found) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
