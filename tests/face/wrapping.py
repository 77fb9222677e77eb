"""Optimizers around others."""

from __future__ import annotations

from typing import Any

import torch


class PassingOn(torch.optim.Optimizer):
    """As Accelerate's wrapper: an optimizer that was not set up as one, around another."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.state, self.param_groups = optimizer.state, optimizer.param_groups

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.optimizer.step()

    def state_dict(self) -> Any:
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: Any) -> None:
        self.optimizer.load_state_dict(state_dict)
