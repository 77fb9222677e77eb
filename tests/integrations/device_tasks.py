"""What ranks commit of tensors on devices; see `rank_child`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

import ckptstore
from ckptstore.integrations.dcp import StoreWriter
from ckptstore.operations.ranks import writing
from ckptstore.testing.lanes import FakeDevices
from tests.integrations.rank_child import drifting, laid_out, local, tensors

DEVICE_TASKS: dict[str, Callable[..., Any]] = {}


def task(function):
    DEVICE_TASKS[function.__name__] = function
    return function


def commit(store, how, state, step, group):
    if how == "dcp.save":
        writer = StoreWriter(store, step=step, process_group=group)
        dcp_save({"model": state}, storage_writer=writer, process_group=group)
        return None
    made = getattr(store, how)({"model": state}, step=step, process_group=group)
    return made if how == "commit" else made.result()


@task
def commit_changes_on_devices(group, place, layout, how):
    """What crosses to the host for the same state again, for one that changed a little, and for what gc took."""
    crossed = []
    with ckptstore.open(place, compression="none") as store, FakeDevices() as devices:
        state, lane = laid_out({"x": drifting(0)}, layout, group), devices.lanes[0]
        devices.put(local(state["x"]))

        def commit_next(step):
            before = lane.crossed
            commit(store, how, state, step, group)
            crossed.append(lane.crossed - before)

        commit_next(0)
        commit_next(1)
        lane.train(local(state["x"])[3, :10].zero_)
        commit_next(2)
        dist.barrier(group)
        if dist.get_rank(group) == 0:
            for step in store.steps():
                store.delete(step)
            store.gc(grace=0)
        dist.barrier(group)
        commit_next(3)
    return crossed


@task
def change_while_committing(group, place):
    """What is the same on both ranks, after they were told so, and before one of them stores it."""
    begin = writing._Share.open
    with ckptstore.open(place) as store, FakeDevices() as devices:
        tensor = devices.put(torch.arange(4096.0))

        def change_and_open(held):
            tensor.fill_(7)
            return begin(held)

        writing._Share.open = change_and_open  # type: ignore[method-assign]
        try:
            commit(store, "commit", {"x": tensor}, 0, group)
        finally:
            writing._Share.open = begin  # type: ignore[method-assign]


@task
def train_on_devices(group, place, layout, seed, how="commit_async", steps=6):
    """Train on devices whose work is done late, and commit each step; which leaves are not what they were then."""
    wanted: list[dict[str, torch.Tensor]] = []
    with ckptstore.open(place) as store, FakeDevices(seed + 10 * dist.get_rank(group)) as devices:
        state, lane = laid_out(tensors(0), layout, group), devices.lanes[0]
        mirror = {name: local(tensor).clone() for name, tensor in state.items()}
        for tensor in state.values():
            devices.put(local(tensor))
        for step in range(steps):
            for number, (name, held) in enumerate(mirror.items()):
                if (step + number) % 3:
                    lane.train(partial(local(state[name])[1:].add_, step))
                    held[1:].add_(step)
            wanted.append({name: held.clone() for name, held in mirror.items()})
            if how == "commit_async":
                store.commit_async({"model": state}, step=step, process_group=group)
            else:
                commit(store, how, state, step, group)
            if step % 3 == 2:
                lane.synchronize()
                commit(store, "commit", state, step, group)
        lane.synchronize()
    into = laid_out({name: torch.zeros_like(tensor) for name, tensor in tensors(0).items()}, layout, group)
    wrong = []
    with ckptstore.open(place) as store:
        for step, held in enumerate(wanted):
            store.checkout(step, into={"model": into}, process_group=group)
            wrong += [(step, name) for name in held if not local(into[name]).equal(held[name])]
    return wrong
