"""State into an optimizer, with every bit as it was committed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ckptstore.state.steps import loading


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load it without what `Optimizer.load_state_dict` does: cast a parameter's state to its dtype, which loses bits.

    Hooks see the state that is cast, whatever other hooks or a subclass made of it, and put the bits right at once.
    """
    hooked = loading(optimizer)
    if hooked is None:
        optimizer.load_state_dict(state)
        return
    given: list[Mapping[str, Any]] = []
    before = hooked.register_load_state_dict_pre_hook(lambda _, state: given.append(state))
    after = hooked.register_load_state_dict_post_hook(lambda _: _keep_dtypes(hooked, given[-1]), prepend=True)
    try:
        optimizer.load_state_dict(state)
    finally:
        before.remove()
        after.remove()


def _keep_dtypes(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    keys = [key for group in state["param_groups"] for key in group["params"]]
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, parameter in zip(keys, parameters, strict=True):
        if key in state["state"]:
            optimizer.state[parameter] = _uncast(optimizer.state[parameter], state["state"][key])


def _uncast(cast: Any, value: Any) -> Any:
    """`cast` with the dtypes of `value`."""
    if isinstance(value, torch.Tensor):
        return cast if cast.dtype == value.dtype else value.to(cast.device)
    if isinstance(value, Mapping):
        return {key: _uncast(cast[key], inner) for key, inner in value.items()}
    if type(value) in {list, tuple}:
        return type(value)(map(_uncast, cast, value))
    return cast
