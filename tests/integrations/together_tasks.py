"""What ranks do with a store themselves; see `rank_child`."""

from __future__ import annotations

import logging.handlers
import os
import queue
import random
import runpy
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import ckptstore
from ckptstore.chunkstore.pace import Pace
from ckptstore.integrations.dcp import StoreWriter
from ckptstore.operations.ranks import ranks, together, writing
from ckptstore.state.tree import flatten
from ckptstore.testing.equality import assert_same
from ckptstore.testing.states import Colour, Level
from tests.integrations.rank_child import as_tree, laid_out, local, square, tensors

MORE_TASKS: dict[str, Callable[..., Any]] = {}


def task(function):
    MORE_TASKS[function.__name__] = function
    return function


@task
def commit(group, place, step, layout="rows", seed=0, same=True, **options):
    with ckptstore.open(place, **options) as store:
        state = as_tree(laid_out(tensors(seed), layout, group), step if same else 0)
        return store.commit(state, step=step, process_group=group, metadata={"by": dist.get_world_size(group)}).id


@task
def commit_at_paces(group, place):
    """Which commits took themselves for being beside training, and how many paces all of them went by."""
    asked: list[tuple[Pace, bool]] = []
    choose = Pace.choose

    def watched(pace, *, background=False, writes=True):
        asked.append((pace, background))
        return choose(pace, background=background, writes=writes)

    beside = []
    with mock.patch.object(Pace, "choose", watched), ckptstore.open(place) as store:
        for step in range(3):
            start, state = len(asked), as_tree(laid_out(tensors(step), "rows", group), step)
            if step < 2:
                store.commit(state, step=step, process_group=group)
            else:
                store.commit_async(state, step=step, process_group=group).result()
            beside.append(sorted({background for _, background in asked[start:]}))
    return beside, len({id(pace) for pace, _ in asked})


@task
def commit_late(group, place):
    """What each rank logged while the last one came late, and in another commit in which it came late again."""
    records: queue.SimpleQueue[Any] = queue.SimpleQueue()
    ranks._LATE_SECONDS = 0.2
    ranks._MET.clear()
    handler = logging.handlers.QueueHandler(records)
    ranks._LOG.addHandler(handler)
    try:
        with ckptstore.open(place) as store:
            for step in range(2):
                time.sleep(dist.get_rank(group))
                store.commit({"w": torch.ones(3)}, step=step, process_group=group)
    finally:
        ranks._LOG.removeHandler(handler)
        ranks._LATE_SECONDS = 20.0
    return [records.get().getMessage() for _ in range(records.qsize())]


@task
def check_out(group, place, step, layout="rows", seed=0, dtype=None, **options):
    """Which tensors are not what they should be, cast to a dtype if that is given."""
    whole = {
        name: tensor if dtype is None else tensor.to(getattr(torch, dtype)) for name, tensor in tensors(seed).items()
    }
    wanted = laid_out(whole, layout, group)
    state = as_tree(laid_out({name: torch.zeros_like(tensor) for name, tensor in whole.items()}, layout, group), -1)
    with ckptstore.open(place, **options) as store:
        store.checkout(step, into=state, process_group=group, allow_cast=dtype is not None)
    assert state["step"] == step
    return [name for name, tensor in wanted.items() if not local(state["model"][name]).equal(local(tensor))]


def own_state(rank, step):
    random = torch.Generator().manual_seed(rank)
    return {
        "common": {"lr": 0.1, "weight": torch.arange(3000.0) + step, "betas": [0.9, torch.ones(40)]},
        "loader": {"epoch": 3, "position": 10 * rank, "seen": torch.randint(9, (2000,), generator=random)},
        "queue": [1, rank],
        "stages": {f"stage {rank}": torch.full((500,), float(rank))},
    }


@task
def commit_own(group, place, step):
    rank = dist.get_rank(group)
    with ckptstore.open(place) as store:
        store.commit(own_state(rank, step), step=step, process_group=group)
        empty = own_state(rank, step)
        empty["loader"] = {"epoch": 0, "position": -1, "seen": torch.zeros(2000, dtype=torch.int64)}
        empty["queue"] = [0, 0]
        store.checkout(step, into=empty, process_group=group, strict=False)
    wanted = own_state(rank, step)
    assert empty["loader"]["seen"].equal(wanted["loader"]["seen"])
    return [empty["loader"]["epoch"], empty["loader"]["position"], empty["queue"]]


KEYS = {
    "tuples": lambda _: (0, 1),
    "enums": lambda _: Colour.BLUE,
    "dtypes": lambda _: torch.bfloat16,
    "equal ones": lambda rank: True if rank else 1,
    "equal ones of other classes": lambda rank: Level.LOW if rank else 1,
}


@task
def commit_keys(group, place, keys, background):
    """What one process gets of a dict with a key of any kind, or with equal ones of two kinds."""
    rank = dist.get_rank(group)
    state = {"d": {"x": rank, KEYS[keys](rank): torch.full((3,), 2.0), "y": 1}}
    with ckptstore.open(place) as store:
        if background:
            store.commit_async(state, step=1, process_group=group).result()
        else:
            store.commit(state, step=1, process_group=group)
        live = {"d": {"x": -1, KEYS[keys](rank): torch.zeros(3), "y": -1}}
        store.checkout(1, into=live, process_group=group)
        assert_same(live, state)
        return repr(store.checkout(1))


@task
def write_while_committing(group, place, layout, seen):
    """To what this rank has, when progress is reported to it, as another thread may; so that torch counts it or not."""
    state = laid_out({"x": torch.arange(4096.0).view(64, 64)}, layout, group)

    def write(*_):
        if dist.get_rank(group) == 0:
            held = local(state["x"])
            (held if seen else held.data).add_(1)

    with ckptstore.open(place) as store:
        store.commit({"model": state}, step=0, process_group=group, progress=write)


@task
def check_out_own(group, place, step, strict=True):
    with ckptstore.open(place) as store:
        state = {"loader": {"epoch": 0, "position": -1, "seen": torch.zeros(2000, dtype=torch.int64)}}
        store.checkout(step, into=state, process_group=group, strict=strict)
        return state["loader"]["position"]


class _Loader:
    """Some of its state is each rank's own."""

    def __init__(self):
        self.at = (0, -1)

    def state_dict(self):
        return {"epoch": self.at[0], "position": self.at[1]}

    def load_state_dict(self, state):
        self.at = state["epoch"], state.get("position", 0)


class _Position(_Loader):
    """All of its state is."""

    def state_dict(self):
        return {"position": self.at[1]}

    def load_state_dict(self, state):
        self.at = 0, state["position"]


class _Noted(torch.nn.Module):
    """So is a part of what it gives beside its tensors."""

    def __init__(self):
        super().__init__()
        self.w, self.extra = torch.nn.Parameter(torch.zeros(3)), {"kind": "extra", "seen": -1}

    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        self.extra = state


def _partly_own(value):
    """Objects whose state ranks have partly for themselves, a sparse tensor among them, and a plain dict."""
    model, loader, position = _Noted(), _Loader(), _Position()
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, 2]]), torch.tensor([float(value), 1.0]), (4,))
    return {"model": model, "loader": loader, "position": position, "rng": ckptstore.RNGState()}, sparse


@task
def commit_partly_own(group, place):
    rank = dist.get_rank(group)
    state, sparse = _partly_own(rank)
    random.seed(rank)
    np.random.seed(rank)
    torch.manual_seed(rank)
    with torch.no_grad():
        state["model"].w.fill_(1.0)
    state["model"].extra = {"kind": "extra", "seen": rank}
    state["loader"].at = state["position"].at = (3, 100 + rank)
    with ckptstore.open(place) as store:
        store.commit(state | {"sparse": sparse, "plain": {"epoch": 3, "mine": rank}}, step=1, process_group=group)


@task
def check_out_partly_own(group, place):
    """What each rank has then, and whether it draws the numbers that it would have drawn."""
    state, sparse = _partly_own(-1)
    state |= {"sparse": sparse, "plain": {"epoch": 0, "mine": -1}}
    random.seed(77)
    with ckptstore.open(place) as store:
        store.checkout(1, into=state, process_group=group, strict=False)
    kept, model = random.random() == random.Random(77).random(), state["model"]
    objects = [model.w.tolist(), model.extra["seen"], state["loader"].at, state["position"].at]
    return [*objects, state["sparse"].to_dense().tolist(), state["plain"], kept]


def _snapshotted(group, seen):
    """What a rank of the snapshot `ranks` had, or what is to be filled with it."""
    rank = dist.get_rank(group)
    states = runpy.run_path(str(Path(__file__).parent / "snapshots" / "states.py"))
    state = states["of_rank"](rank if seen else 7)
    whole = states["sharded"]() if seen else torch.zeros(7, 4)
    table = {"w": laid_out({"w": whole}, "rows", group)["w"], "empty": {}}
    return {"own": state["own"], "same": state["same"], "table": table}


@task
def commit_snapshotted(group, place):
    with ckptstore.open(place) as store:
        store.commit(_snapshotted(group, seen=True), step=2, process_group=group)


@task
def check_out_snapshotted(group, place):
    state, wanted = _snapshotted(group, seen=False), _snapshotted(group, seen=True)
    with ckptstore.open(place) as store:
        store.checkout(1, into=state, process_group=group)
    assert state["table"]["w"].to_local().equal(wanted["table"]["w"].to_local())
    assert_same({**state, "table": {}}, {**wanted, "table": {}})


@task
def train_together(group, place, start, stop):
    """Train a sharded model from a step to another; the losses."""
    torch.manual_seed(0)
    layers = [torch.nn.Linear(40, 67), torch.nn.ReLU(), torch.nn.Linear(67, 3)]
    model: Any = torch.nn.Sequential(*layers)
    fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    app_state = {"model": model, "optimizer": optimizer, "position": 0}
    losses = []
    with ckptstore.open(place) as store:
        if start:
            store.checkout(start, into=app_state, process_group=group)
            assert app_state["position"] == start
        for step in range(start, stop):
            batch = torch.randn(16, 40, generator=torch.Generator().manual_seed(step))
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        app_state["position"] = stop
        store.commit(app_state, step=stop, process_group=group)
    return losses


@task
def cast_together(group, place):
    """Take a training on in bfloat16; how far state and parameters are from a cast of what they were, and dtypes."""
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        model: Any = torch.nn.Linear(40, 67, dtype=dtype)
        fully_shard(model, mesh=DeviceMesh.from_group(group, "cpu"))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        with ckptstore.open(place) as store:
            if dtype is torch.bfloat16:
                state = {"model": model, "optimizer": optimizer}
                store.checkout(1, into=state, process_group=group, allow_cast=True)
            else:
                step_once(model, optimizer)
                store.commit({"model": model, "optimizer": optimizer}, step=1, process_group=group)
        kept = [optimizer.state[model.weight][key] for key in ("step", "exp_avg", "exp_avg_sq")]
        found.append([local(tensor) for tensor in (model.weight, *kept)])
    far = [float((cast.double() - wide.to(cast.dtype).double()).abs().sum()) for wide, cast in zip(*found, strict=True)]
    step_once(model, optimizer)
    return far, [str(cast.dtype) for cast in found[1]]


def step_once(model, optimizer):
    model(torch.ones(4, 40, dtype=model.weight.dtype)).square().mean().backward()
    optimizer.step()


@task
def step_after(group, place, *, fresh):
    """Weights after a second step, with what optimizers have as DTensors; `fresh` ones begin with a checkout."""
    mesh = DeviceMesh.from_group(group, "cpu")
    torch.manual_seed(int(fresh))
    weight: Any = torch.nn.Parameter(distribute_tensor(torch.randn(6, 4), mesh, [Replicate()]))
    scale: Any = torch.nn.Parameter(distribute_tensor(torch.randn(()), mesh, [Replicate()]))
    optimizers = {"wide": torch.optim.Adafactor([weight], lr=0.1), "narrow": torch.optim.Adam([scale], lr=0.1)}
    state = {"model": {"w": weight, "s": scale}, **optimizers}

    def step():
        (weight.full_tensor() * scale.full_tensor()).square().sum().backward()
        for optimizer in optimizers.values():
            optimizer.step()
            optimizer.zero_grad()

    with ckptstore.open(place) as store:
        if fresh:
            store.checkout(1, into=state, process_group=group)
        else:
            step()
            store.commit(state, step=1, process_group=group)
    step()
    kept = [*optimizers["wide"].state[weight].items(), *optimizers["narrow"].state[scale].items()]
    sharded = [name for name, tensor in kept if isinstance(tensor, DTensor)]
    return [weight.full_tensor().tolist(), scale.full_tensor().item(), sharded]


class _OfParts(torch.optim.Optimizer):
    """Keeps plain tensors of what this rank has of its DTensors."""

    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            part, gradient = parameter.to_local(), parameter.grad.to_local()
            self.state[parameter].setdefault("v", torch.zeros_like(part)).lerp_(gradient, 0.5)
            part.sub_(self.state[parameter]["v"])


@task
def step_after_in_parts(group, place):
    """Weights after a second step, of who goes on and of who begins with a checkout; and whether state is plain."""
    mesh = DeviceMesh.from_group(group, "cpu")
    found = []
    with ckptstore.open(place) as store:
        for fresh in (False, True):
            torch.manual_seed(int(fresh))
            weight: Any = torch.nn.Parameter(distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)]))
            optimizer = _OfParts([weight])
            state = {"w": weight, "optim": optimizer}
            for step in range(2):
                if fresh and not step:
                    store.checkout(1, into=state, process_group=group)
                    continue
                weight.grad = None
                weight.square().sum().backward()
                optimizer.step()
                if not step:
                    store.commit(state, step=1, process_group=group)
            found.append([weight.full_tensor().tolist(), type(optimizer.state[weight]["v"]).__name__])
    return found


@task
def check_out_partly_own_by_paths(group, place):
    """The error for globs that choose what not all ranks had."""
    found = []
    with ckptstore.open(place) as store:
        for paths in ("loader", "loader/position", "loader/odd"):
            state: dict[str, Any] = {"loader": _Loader(), "model": _Noted()}
            try:
                store.checkout(1, into=state, paths=paths, process_group=group, strict=False)
                found.append(state["loader"].at)
            except ckptstore.PathNotFound:
                found.append("none")
    return found


@task
def read_part(group, place, layout, step=1):
    """Which leaves a DTensor does not get its part of, by reading one after the other."""
    wanted = laid_out(tensors(0), layout, group)
    outs = laid_out({name: torch.zeros_like(tensor) for name, tensor in tensors(0).items()}, layout, group)
    with ckptstore.open(place) as store:
        same = [store.read(step, f"model/{name}", out=out) is out for name, out in outs.items()]
    assert all(same)
    return [name for name, tensor in wanted.items() if not local(outs[name]).equal(local(tensor))]


@task
def refuse_to_read(group, place):
    """The errors for DTensors that cannot be filled."""
    mesh = DeviceMesh.from_group(group, "cpu")
    whole = distribute_tensor(torch.zeros(301, 67), mesh, [Shard(0)])
    outs = {
        "shape": (distribute_tensor(torch.zeros(67, 301), mesh, [Shard(0)]), ...),
        "dtype": (whole.to(torch.bfloat16), ...),
        "rows": (whole, slice(0, 301)),
        "sum": (DTensor.from_local(torch.zeros(301, 67), mesh, [Partial()]), ...),
    }
    found = {}
    with ckptstore.open(place) as store:
        for name, (out, index) in outs.items():
            try:
                store.read(1, "model/weight", out=out, index=index)
            except ckptstore.CkptStoreError as error:
                found[name] = f"{type(error).__name__}: {error}"
    return found


@task
def commit_apart(group, places, steps):
    rank = dist.get_rank(group)
    with ckptstore.open(places[rank % len(places)]) as store:
        store.commit({"x": torch.ones(3000)}, step=steps[rank % len(steps)], process_group=group)


@task
def commit_one_way_or_the_other(group, place, ways):
    with ckptstore.open(place) as store:
        getattr(store, ways[dist.get_rank(group)])({"w": torch.ones(3000)}, step=1, process_group=group)


@task
def commit_misfits(group, place, kind):
    """Ranks whose states are no state together."""
    rank = dist.get_rank(group)
    mesh = DeviceMesh.from_group(group, "cpu")
    odd = {
        "shapes": lambda: {"w": laid_out({"w": torch.ones(300 + rank, 4)}, "rows", group)["w"]},
        "partial": lambda: {"w": DTensor.from_local(torch.ones(4), mesh, [Partial()])},
        "own": lambda: {"w": [rank, laid_out({"w": torch.ones(300, 4)}, "rows", group)["w"]]},
        "unknown": lambda: {"w": object() if rank == 1 else 0},
        "beside": lambda: {"w": torch.ones(3) if rank else laid_out({"w": torch.ones(300)}, "rows", group)["w"]},
    }[kind]()
    with ckptstore.open(place) as store:
        store.commit({"state": odd}, step=1, process_group=group)


class Dying:
    """Kills the process, or fails, where its state is asked for."""

    def __init__(self, how):
        self._how = how

    def state_dict(self):
        if self._how == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        raise {"fail": OSError, "refuse": RuntimeError}[self._how]("the state is gone")

    def load_state_dict(self, state_dict):
        raise NotImplementedError


@task
def commit_and_fail(group, place, step, who, how):
    state: dict[str, Any] = {"model": laid_out(tensors(step), "rows", group)}
    if dist.get_rank(group) == who:
        state["dying"] = Dying(how)
    with ckptstore.open(place) as store:
        store.commit(state, step=step, process_group=group)


@task
def commit_watched(group, place, step, layout="rows", background=False, failing=0):
    """The progress that is reported to this rank, and the bytes it has; some of them tied, its own, or no array's."""
    rank, calls = dist.get_rank(group), []

    def watch(*call):
        calls.append(call)
        if rank == 1 and len(calls) == failing:
            raise OSError("enough")

    state = as_tree(laid_out(tensors(0), layout, group), step)
    own = torch.arange(9000.0) + rank
    state |= {"own": own, "again": {"own": own, "weight": state["model"]["weight"]}, "text": f"{rank}" * 9000}
    with ckptstore.open(place) as store:
        if background:
            handle = store.commit_async(state, step=step, process_group=group)
            handle.result()
            calls.append(("commit", handle.progress.done, handle.progress.total))
        else:
            store.commit(state, step=step, process_group=group, progress=watch)
    return [calls, flatten(state).nbytes]


@task
def commit_watched_by_none(group, place, step, who):
    with ckptstore.open(place) as store:
        watched: Any = 5 if dist.get_rank(group) == who else None
        store.commit({"w": torch.ones(3000)}, step=step, process_group=group, progress=watched)


@task
def commit_of_one_replica(group, place):
    """Only one of the meshes that have all of it commits, and one rank of a mesh; what these say."""
    mesh = square(4)
    state = {"model": laid_out(tensors(4), "replicated rows", group)}
    inner = mesh["inner"].get_group()
    steps = []
    with ckptstore.open(place) as store:
        if mesh.get_local_rank("outer") == 1:
            steps.append(store.commit(state, step=1, process_group=inner).step)
            steps.append(store.commit_async(state, step=2, process_group=inner).result().step)
        alone = dist.new_group([3])
        if dist.get_rank() == 3:
            copies = {"model": laid_out(tensors(4), "replicated", group)}
            steps.append(store.commit(copies, step=3, process_group=alone).step)
            steps.append(store.commit_async(copies, step=4, process_group=alone).result().step)
    dist.barrier(group)
    return steps


@task
def commit_copies_on_meshes(group, place, way):
    """Two rows of ranks, each of which has all of a model that is parallel in its own mesh; what comes back.

    Of the second row, it may have drifted away, or be divided in another way.
    """
    mesh = square(4)["inner"]
    torch.manual_seed(0)
    layers = [torch.nn.Linear(40, 64, bias=False), torch.nn.ReLU(), torch.nn.Linear(64, 40, bias=False)]
    model: Any = torch.nn.Sequential(*layers)
    plan = [ColwiseParallel(), RowwiseParallel()]
    if way == "divided" and dist.get_rank(group) > 1:
        plan.reverse()
    parallelize_module(model, mesh, dict(zip(("0", "2"), plan, strict=True)))
    if way == "drifted" and dist.get_rank(group) == 3:
        local(model[2].weight.data)[-1, -1] += 1
    state = {"model": model}
    wanted = {name: local(weight).clone() for name, weight in model.state_dict().items()}
    with ckptstore.open(place) as store:
        if way == "dcp":
            writer = StoreWriter(store, step=1, process_group=group)
            dcp_save({"model": model.state_dict()}, storage_writer=writer, process_group=group)
        elif way == "in the background":
            store.commit_async(state, step=1, process_group=group).result(60)
        elif way != "one mesh":
            store.commit(state, step=1, process_group=group)
        elif dist.get_rank(group) < 2:
            store.commit(state, step=1, process_group=mesh.get_group())
        dist.barrier(group)
        for weight in model.parameters():
            local(weight.data).zero_()
        store.checkout(1, into=state)
    return [name for name, weight in model.state_dict().items() if not local(weight).equal(wanted[name])]


@task
def commit_replicated(group, place, drifted=None):
    """Two meshes, each of which has all of some tensors on all of its ranks; the bytes that this rank is to write."""
    mesh, rank = square(4)["inner"], dist.get_rank(group)
    wholes = [torch.arange(1000.0) + number + (rank == drifted) for number in range(16)]
    state = {f"w{number}": DTensor.from_local(whole, mesh, [Replicate()]) for number, whole in enumerate(wholes)}
    with (
        ckptstore.open(place) as store,
        mock.patch.object(together, "write_share", wraps=writing.write_share) as write,
    ):
        store.commit(state, step=1, process_group=group)
    return sum(part.nbytes for part in write.call_args.args[2].parts)


@task
def commit_one_row(group, place):
    """A mesh of one rank that has it, and one of three, of which two have nothing."""
    of_one, of_three = DeviceMesh("cpu", [0]), DeviceMesh("cpu", [1, 2, 3])
    mesh = of_one if dist.get_rank(group) == 0 else of_three
    row = distribute_tensor(torch.arange(3000.0).view(1, -1), mesh, [Shard(0)], src_data_rank=None)
    with ckptstore.open(place) as store:
        store.commit({"row": row}, step=1, process_group=group)


@task
def commit_on_meshes_that_overlap(group, place):
    """One rank of the second mesh has the tensors on the first instead."""
    first, second = DeviceMesh("cpu", [0, 1]), DeviceMesh("cpu", [1, 2, 3])
    mesh = first if dist.get_rank(group) < 2 else second
    state = {name: DTensor.from_local(torch.arange(3000.0), mesh, [Replicate()]) for name in "abcdefgh"}
    with ckptstore.open(place) as store:
        store.commit(state, step=1, process_group=group)


class Counted:
    """An object that judges its state itself."""

    def __init__(self, seen):
        self.seen = seen

    def state_dict(self):
        return {"seen": self.seen, "epoch": 3}

    def load_state_dict(self, state):
        assert state["epoch"] == 3
        self.seen = state["seen"]


@task
def commit_what_some_lack(group, place):
    """Experts of each rank, of which that of some had nothing to do; what comes back, and what was there."""
    rank = dist.get_rank(group)
    torch.manual_seed(rank)
    parameters = [torch.nn.Parameter(torch.randn(3)) for _ in range(2)]
    optimizer = torch.optim.Adam(parameters)
    for parameter in parameters if rank == 0 else parameters[:1]:
        parameter.grad = torch.randn(3)
    optimizer.step()
    fresh = torch.optim.Adam([torch.nn.Parameter(torch.zeros(3)) for _ in range(2)])
    counted, other = Counted({100 + rank: {"x": 1}, 7: 1}), Counted({})
    with ckptstore.open(place) as store:
        store.commit({"opt": optimizer, "counted": counted}, step=1, process_group=group)
        store.checkout(1, into={"opt": fresh, "counted": other}, process_group=group)
    return [[state_of(it), seen] for it, seen in ((optimizer, counted.seen), (fresh, other.seen))]


def state_of(optimizer):
    return {
        number: {key: value.tolist() for key, value in state.items()}
        for number, state in optimizer.state_dict()["state"].items()
    }


@task
def import_alone(group, place, file, ranks):
    """Ranks that import a file, while the others do nothing."""
    from ckptstore.integrations.torch_save import import_torch

    made = []
    if dist.get_rank() in ranks:
        with ckptstore.open(place) as store:
            made.append(import_torch(store, file, step=1).id)
    return made


@task
def train_with_statistics(group, place):
    """Train what counts batches with DDP, and commit it; the statistics of each rank, then as they come back."""
    torch.manual_seed(0)
    norm = torch.nn.BatchNorm1d(4)
    norm.register_buffer("by_another_name", norm.get_buffer("running_mean"))
    inner = torch.nn.Sequential(torch.nn.Linear(4, 4), norm, torch.nn.Linear(4, 2))
    model = DistributedDataParallel(inner, process_group=group)
    torch.manual_seed(dist.get_rank(group))
    mean = norm.get_buffer("running_mean")
    for _ in range(3):
        model(torch.randn(8, 4)).sum().backward()
    own = mean.tolist()
    with ckptstore.open(place) as store:
        store.commit({"model": model}, step=1, process_group=group)
        mean.zero_()
        store.checkout(1, into={"model": model}, process_group=group)
    return [own, mean.tolist()]


@task
def commit_of_several_parallel_models(group, place):
    """Two process groups with a model each, by the same names; the statistics of each rank, then as they come back."""
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    rank = dist.get_rank(group)
    norm = torch.nn.BatchNorm1d(4)
    mean = norm.get_buffer("running_mean").fill_(rank // 2 + 1)
    model = DistributedDataParallel(norm, process_group=pairs[rank // 2])
    with ckptstore.open(place) as store:
        store.commit({"model": model}, step=1, process_group=group)
        mean.zero_()
        store.checkout(1, into={"model": model}, process_group=group)
    return mean.tolist()


@task
def commit_statistics_that_stay(group, place, why):
    """Of models whose buffers DDP leaves as they are; the statistics of each rank as they come back."""
    norm = torch.nn.BatchNorm1d(4)
    mean = norm.get_buffer("running_mean")
    if why == "ignored":
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(norm, ["running_mean"])
    model = DistributedDataParallel(norm, process_group=group, broadcast_buffers=why == "ignored")
    mean.fill_(dist.get_rank(group) + 1)
    with ckptstore.open(place) as store:
        store.commit({"model": model}, step=1, process_group=group)
        mean.zero_()
        store.checkout(1, into={"model": model}, process_group=group)
    return mean.tolist()
