"""What ranks commit that they are told is the same on all of them; see `rank_child`."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import ckptstore
from tests.integrations.rank_child import laid_out, tensors

REPLICATED_TASKS: dict[str, Callable[..., Any]] = {}


def task(function):
    REPLICATED_TASKS[function.__name__] = function
    return function


def commit(store, group, how, state, **options):
    if how == "at once":
        return store.commit(state, process_group=group, **options)
    return store.commit_async(state, process_group=group, **options).result(60)


@task
def commit_with_and_without(group, place, how, seeds):
    """Which states are another commit when ranks are told what is the same."""
    wrong = []
    with ckptstore.open(place) as store:
        for seed in seeds:
            state, globs = trained(seed, group)
            without = commit(store, group, how, state, step=2 * seed)
            replicated = commit(store, group, how, state, step=2 * seed + 1, replicated=globs)
            wrong += [seed] if replicated.content != without.content else []
    return wrong


def trained(seed, group):
    """A state that is the same on all ranks but for what is beneath "own", and globs that do not choose that."""
    chance, rank = random.Random(seed), dist.get_rank(group)
    torch.manual_seed(seed)
    model = torch.nn.Linear(40, chance.randint(1, 80))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(40)).sum().backward()
    optimizer.step()
    state = {
        "model": model,
        "optimizer": optimizer,
        "tied": {"in": model.weight, "out": [model.weight, model.bias]},
        "sharded": laid_out(tensors(seed), "rows", group),
        "stages": {f"stage {rank // 2}": torch.full((chance.randint(1, 3000),), float(rank // 2))},
        "mixed": nested(chance, 3),
        "own": {"rng": torch.full((2000,), rank), "queue": [rank, {"seen": [rank] * 3}], "empty": {}},
    }
    several = ["model", "optimizer/**", "tied/in", "tied/out/*", "sharded", "stages/*", "mixed/**", "[!o]*/**", "no/**"]
    globs = chance.sample(several, chance.randint(1, 4))
    return state, globs if len(globs) > 1 else globs[0]


def nested(chance, depth):
    kind = chance.choice(["dict", "ordered", "list", "tuple"] if depth else ["tensor", "array", "value", "text"])
    if kind in {"dict", "ordered"}:
        made = {
            key: nested(chance, depth - 1) for key in chance.sample(["a", "b", "c/d", "7", 7], chance.randint(0, 4))
        }
        return made if kind == "dict" else OrderedDict(made)
    if kind in {"list", "tuple"}:
        return {"list": list, "tuple": tuple}[kind](nested(chance, depth - 1) for _ in range(chance.randint(0, 3)))
    return {
        "tensor": lambda: torch.arange(float(chance.randrange(4000))).expand(2, -1).t(),
        "array": lambda: np.arange(chance.randrange(3000), dtype=np.int16),
        "value": lambda: chance.choice([None, 3, 0.5, "x", b"y"]),
        "text": lambda: "x" * chance.randrange(20_000),
    }[kind]()


@task
def commit_what_differs(group, place, how):
    """What is told to be the same is not."""
    rank = dist.get_rank(group)
    weight = torch.full((3000,), float(rank))
    state = {
        "counter": rank,
        "text": "x" * (1 + 5000 * rank),
        "weights": {f"w{number}": torch.full((3000,), float(rank)) for number in range(5)},
        "tied": {"in": weight, "large": torch.full((9000,), float(rank)), "out": weight},
    }
    with ckptstore.open(place) as store:
        commit(store, group, how, state, step=1, replicated=["**"])


@task
def commit_no_replicas(group, place, how, kind):
    """What is told to be the same cannot be."""
    rank, given = dist.get_rank(group), "w"
    ones = torch.ones(3000)
    state: dict[str, Any] = {"w": ones}
    match kind:
        case "shape":
            state["w"] = torch.ones(3000 + rank)
        case "dtype":
            state["w"] = ones.to([torch.float32, torch.float64][rank])
        case "parameter":
            state["w"] = [ones, torch.nn.Parameter(ones)][rank]
        case "kind":
            state["w"] = [1, ones][rank]
        case "dict":
            state["w"] = [{"x": ones}, ones][rank]
        case "shard":
            state["w"] = [laid_out({"w": ones}, "rows", group)["w"], ones][rank]
        case "globs":
            given = ["w", "v"][rank]
        case "list":
            state, given = {"list": [{"w": ones}, rank]}, "list/0/*"
        case "length":
            state, given = {"list": [ones] * (1 + rank)}, "**"
        case "type":
            given = [given, 5][rank]  # type: ignore[assignment]
    with ckptstore.open(place) as store:
        commit(store, group, how, state, step=1, replicated=given)
