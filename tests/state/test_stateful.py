from __future__ import annotations

import random

import numpy as np
import torch

from ckptstore.state.stateful import RNGState, StateDict
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.tree import flatten, is_stateful
from ckptstore.state.unflatten import unflatten
from ckptstore.state.values import decode


def _numbers() -> list[float]:
    return [random.random(), random.gauss(0, 1), np.random.rand(), np.random.randn(), torch.rand(()).item()]


def test_random_numbers_go_on_where_they_were():
    _numbers()
    flat = flatten({"rng": RNGState()})
    leaves = {
        path: leaf.tensor if isinstance(leaf, TensorLeaf) else decode(leaf, path) for path, leaf in flat.leaves.items()
    }
    state = unflatten(flat.containers, leaves)["rng"]
    first = [_numbers() for _ in range(3)]
    RNGState().load_state_dict(state)
    assert [_numbers() for _ in range(3)] == first


def test_cuda_states_of_other_machines_are_left_alone():
    state = RNGState().state_dict() | {"cuda": [torch.zeros(16, dtype=torch.uint8)] * 64}
    if not torch.cuda.is_available():
        RNGState().load_state_dict(state)
    assert RNGState().state_dict()["python"] == random.getstate()


def test_a_state_dict_is_a_dict_that_is_filled_in_place():
    progress = StateDict(epoch=1, old=True)
    progress["position"] = 5
    assert is_stateful(progress)
    assert set(flatten({"p": progress}).leaves) == {"p/epoch", "p/old", "p/position"}
    progress.load_state_dict({"epoch": 7})
    assert dict(progress) == {"epoch": 7}


def test_loading_its_own_state_changes_nothing():
    progress = StateDict(epoch=1)
    progress.load_state_dict(progress.state_dict())
    assert progress["epoch"] == 1
