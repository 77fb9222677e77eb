"""What ranks commit in the background; see `rank_child`."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, distribute_tensor

import ckptstore
from ckptstore.state.staging import Stager
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.tree import flatten
from ckptstore.storage.local import LocalStorage
from tests.integrations.rank_child import laid_out, tensors
from tests.integrations.together_tasks import Dying

PATIENCE = 60

BACKGROUND_TASKS: dict[str, Callable[..., Any]] = {}


def task(function):
    BACKGROUND_TASKS[function.__name__] = function
    return function


class Training:
    """A model in shards, and whatever else an app state may have."""

    def __init__(self, group):
        torch.manual_seed(0)
        self.group, self.rank = group, dist.get_rank(group)
        self.mesh = DeviceMesh.from_group(group, "cpu")
        model: Any = torch.nn.Sequential(torch.nn.Linear(40, 367), torch.nn.ReLU(), torch.nn.Linear(367, 3))
        self.model = fully_shard(model, mesh=self.mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.buffer = torch.zeros(3000)
        self.average = distribute_tensor(torch.zeros(700, 5), self.mesh, [Replicate()]).requires_grad_()
        self.app_state = {
            "model": self.model,
            "optimizer": self.optimizer,
            "buffer": self.buffer,
            "average": self.average,
            "frozen": laid_out(tensors(3), "rows", group),
            "own": torch.full((3000,), float(self.rank)),
            "loader": {"position": 0},
        }

    def step(self, number):
        batch = torch.randn(16, 40, generator=torch.Generator().manual_seed(number))
        self.optimizer.zero_grad()
        self.model(batch).square().mean().backward()
        self.optimizer.step()
        self.app_state["loader"]["position"] = number + self.rank

    def spoil(self):
        """What others than the optimizer change, at once."""
        self.buffer.add_(1)
        self.average.data.add_(1)
        self.app_state["own"].mul_(-1)
        self.app_state["loader"]["position"] = -1

    def content(self):
        """What this rank has, as it is now."""
        leaves = flatten(self.app_state).leaves
        return {
            path: bytes(leaf.row_major()) if isinstance(leaf, TensorLeaf) else leaf for path, leaf in leaves.items()
        }


@task
def train_in_background(group, place, steps):
    """Train, commit each step in the background, and change everything at once; which steps are not what they were."""
    training, wanted = Training(group), []
    with ckptstore.open(place) as store:
        for step in range(steps):
            training.step(step)
            wanted.append(training.content())
            store.commit_async(training.app_state, step=step, process_group=group, just_in_time=step % 3 != 2)
            training.optimizer.step()
            training.spoil()
            for _ in range(20):
                dist.all_reduce(torch.ones(1000), group=group)
    with ckptstore.open(place) as store:
        wrong = []
        for step in range(steps):
            store.checkout(step, into=training.app_state, process_group=group)
            found = training.content()
            wrong += [(step, path) for path, content in wanted[step].items() if found[path] != content]
    return wrong


@task
def change_what_is_lent(group, how):
    """Between staging and copying; whether what was set apart is what it was."""
    training = Training(group)
    training.step(0)
    weight, path = training.model[0].weight, "model/0.weight"
    wanted, stager = training.content()[path], Stager(None)
    staged = stager.stage(flatten(training.app_state), just_in_time=True)
    try:
        with torch.no_grad():
            {
                "by its optimizer": training.optimizer.step,
                "as a whole": lambda: weight.add_(1),
                "its form": lambda: training.average.requires_grad_(False),
            }[how]()
        flat = staged.settled()
    finally:
        stager.close()
    leaf = flat.leaves[path]
    assert isinstance(leaf, TensorLeaf) and flat.sharded["average"].requires_grad
    return bytes(leaf.row_major()) == wanted


@task
def commit_in_turns(group, place):
    """In the background and not; the handles' progress."""
    with ckptstore.open(place) as store:
        handles = []
        for step in range(4):
            state = {"model": laid_out(tensors(step), "rows", group), "step": step}
            if step == 2:
                store.commit(state, step=step, process_group=group)
            else:
                handles.append(store.commit_async(state, step=step, process_group=group))
    return [handle.done() and handle.progress.done == handle.progress.total for handle in handles]


@task
def stage_and_fail(group, place, who):
    """One rank cannot stage: all get the error at once, and go on."""
    state: dict[str, Any] = {"model": laid_out(tensors(1), "rows", group)}
    if dist.get_rank(group) == who:
        state["dying"] = Dying("fail")
    with ckptstore.open(place) as store:
        store.commit_async({"model": laid_out(tensors(0), "rows", group)}, step=0, process_group=group)
        try:
            store.commit_async(state, step=1, process_group=group)
        except (OSError, ckptstore.RankFailed) as error:
            state.pop("dying", None)
            store.commit_async(state, step=2, process_group=group)
            return f"{type(error).__name__}: {error}"


@task
def write_and_fail(group, place, who):
    """One rank cannot write: all get the error from the handle, or else from the next call, and go on."""
    errors = []
    with ckptstore.open(place) as store:
        store.commit({"model": laid_out(tensors(0), "rows", group)}, step=0, process_group=group)
        for step in (1, 2):
            state = {"model": laid_out(tensors(step), "rows", group)}
            with refused(dist.get_rank(group) == who):
                handle = store.commit_async(state, step=step, process_group=group)
                try:
                    handle.exception()
                    store.commit_async(state, step=step, process_group=group) if step == 1 else handle.result()
                except ckptstore.CkptStoreError as error:
                    errors.append(f"{type(error).__name__}: {error}")
        store.commit_async(state, step=3, process_group=group)
    return errors


@task
def meet_busy_ranks(group, place):
    """A commit of one rank is in flight, as far as its store knows, which another rank's does not."""
    state = {"model": laid_out(tensors(0), "rows", group)}
    with ckptstore.open(place) as one, ckptstore.open(place) as other:
        with held_back():
            handle = one.commit_async(state, step=0, process_group=group)
            answers = []
            for store in (one, *([one, other], [other, one])[dist.get_rank(group)]):
                try:
                    store.commit_async(state, step=1, process_group=group, when_busy="raise")
                except ckptstore.CommitInFlight:
                    answers.append("busy")
        handle.result(PATIENCE)
        one.commit_async(state, step=1, process_group=group, when_busy="raise")
    return answers


@task
def commit_in_two_worlds(group, place, folder):
    """The default group is destroyed, and made anew, while the store is open."""
    rank, size = dist.get_rank(), dist.get_world_size()
    with ckptstore.open(place) as store:
        store.commit_async({"own": torch.full((3000,), rank)}, step=0).result(PATIENCE)
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method=f"file://{folder}/again", rank=rank, world_size=size)
        store.commit_async({"own": torch.full((3000,), rank + 1)}, step=1)


@task
def die_in_background(group, place, who):
    """One rank dies while it writes; for how long the others do not know, and what then."""
    with ckptstore.open(place) as store:
        if dist.get_rank() == who:
            LocalStorage.put = die  # type: ignore[method-assign]
        handle = store.commit_async({"own": torch.randn(3000)}, step=2)
        begun = time.monotonic()
        error = handle.exception()
        seconds = time.monotonic() - begun
        again = None
        try:
            store.commit_async({"own": torch.randn(3000)}, step=3)
        except ckptstore.RankFailed:
            again = "RankFailed"
    return [type(error).__name__, seconds, again]


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def refused(mine):
    put = LocalStorage.put
    if mine:
        LocalStorage.put = refuse  # type: ignore[method-assign]
    try:
        yield
    finally:
        LocalStorage.put = put  # type: ignore[method-assign]


def refuse(*_):
    raise ckptstore.StorageFull("no space")


@contextmanager
def held_back():
    """No pack is written here."""
    gate, put = threading.Event(), LocalStorage.put

    def wait(*args):
        assert gate.wait(PATIENCE)
        return put(*args)

    LocalStorage.put = wait  # type: ignore[method-assign]
    try:
        yield
    finally:
        gate.set()
        LocalStorage.put = put  # type: ignore[method-assign]
