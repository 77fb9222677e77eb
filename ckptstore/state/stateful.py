"""Stateful objects for what has none of its own: plain values, and the random number generators."""

from __future__ import annotations

import random
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

_TORCHSNAPSHOT = "rng_state"


class StateDict(UserDict[str, Any]):
    """A dict that is a stateful: `StateDict(epoch=0, position=0)` in an app state is filled in place by a checkout."""

    def state_dict(self) -> dict[str, Any]:
        """Its items."""
        return self.data

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Take these items in place of all others."""
        self.data = dict(state_dict)


def is_exact(owner: object) -> bool:
    """Whether it must have a commit's paths; other objects judge their state themselves, as optimizers do."""
    return isinstance(owner, torch.nn.Module | StateDict)


def state_of(owner: Any, path: str) -> Any:
    """Its state_dict(); what that raises says whose it is."""
    with noting(f"while asking {path!r} for its state_dict()"):
        return owner.state_dict()


@contextmanager
def noting(note: str) -> Iterator[None]:
    """Adds a note to what is raised within."""
    try:
        yield
    except Exception as error:
        error.add_note(note)
        raise


class RNGState:
    """The global random number generators: Python's, numpy's, torch's on the CPU and on every CUDA device."""

    def state_dict(self) -> dict[str, Any]:
        """The state of every generator now."""
        cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return {
            "python": random.getstate(),
            "numpy": np.random.get_state(legacy=False),  # noqa: NPY002 - the global generator is meant
            "torch": torch.get_rng_state(),
            "cuda": cuda,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Set every generator that it holds; CUDA devices that are not here, or were not, are left alone.

        torchsnapshot's `RNGState` holds torch's generator on the CPU, as `rng_state`.
        """
        if "python" in state_dict:
            random.setstate(state_dict["python"])
        if "numpy" in state_dict:
            np.random.set_state(state_dict["numpy"])  # noqa: NPY002 - likewise
        for key in {"torch", _TORCHSNAPSHOT} & state_dict.keys():
            torch.set_rng_state(state_dict[key])
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for device, state in enumerate(state_dict.get("cuda", [])[:devices]):
            torch.cuda.set_rng_state(state, device)

    @staticmethod
    def holds_generators(keys: Iterable[object]) -> bool:
        """Whether a state with these keys, encoded or not, holds any generator."""
        known = {"python", "numpy", "torch", "cuda", _TORCHSNAPSHOT}
        return any(type(key) is str and key in known for key in keys)
