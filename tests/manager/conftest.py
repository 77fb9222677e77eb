from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from ckptstore.storage.wrappers import Intercepted
from ckptstore.store import Store
from ckptstore.testing.audit import site_of


class Gated(Intercepted):
    """A storage that does one verb only when it may, and fails with `error` once if that is set."""

    def __init__(self, storage: Any) -> None:
        super().__init__(storage)
        self.verb = "put"
        self.gate, self.reached = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self.gate.set()

    def intercept(self, verb: str, key: str, operation: Callable[[], Any]) -> Any:
        if verb == self.verb and key.startswith("packs/"):
            self.reached.set()
            assert self.gate.wait(60)
            error, self.error = self.error, None
            if error is not None:
                raise error
        return operation()


@pytest.fixture
def gated(tmp_path):
    """A store, and the gate of its storage, which is open."""
    parts = site_of(tmp_path / "store").parts(create=True)
    gate = Gated(parts.storage)
    with Store(replace(parts, storage=gate), "main") as store:
        yield store, gate
        gate.gate.set()


@pytest.fixture
def state():
    """Gives another state each time."""
    numbers = iter(range(1000))
    return lambda: {"w": torch.full((5000,), float(next(numbers)))}
