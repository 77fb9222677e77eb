"""Who keeps an error keeps what it came through, as with any error of Python, but no longer than himself."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import ckptstore
from ckptstore.errors import BudgetTooSmall, CkptStoreError, CorruptData, StepExists


class Trainer:
    """A tensor that knows it, and keeps what went wrong: a circle that only Python's collector can free."""

    def __init__(self, tensor):
        self.weight = tensor
        self.weight.owner = self
        self.weight.register_hook(self.on_gradient)
        self.error: CkptStoreError | None = None

    def on_gradient(self, gradient):
        return gradient

    def tries(self, call):
        try:
            call({"weight": self.weight})
        except CkptStoreError as error:
            self.error = error


def parameter():
    return torch.nn.Parameter(torch.randn(100_000))


def strided():
    return torch.zeros(100_000, 2)[:, 0].requires_grad_()


@pytest.mark.parametrize("tensor", [parameter, strided])
@pytest.mark.parametrize("what", ["commit", "async", "small budget", "damaged", "late", "late commit"])
def test_a_trainer_that_keeps_an_error_can_be_freed(tmp_path, tensor, what):
    with ckptstore.open(tmp_path / "store", compression="fast") as store:
        store.commit({"weight": torch.nn.Parameter(torch.randn(100_000))}, step=0)

        def late(*_):
            raise StepExists("as if")

        calls = {
            "commit": lambda state: store.commit(state, step=0),
            "async": lambda state: store.commit_async(state, step=0).result(),
            "small budget": lambda state: store.checkout(0, into=state, memory_budget_bytes=10),
            "damaged": lambda state: store.checkout(0, into=state),
            "late": lambda state: store.checkout(0, into=state, progress=late),
            "late commit": lambda state: store.commit(state, step=1, progress=late),
        }
        if what == "damaged":
            (pack,) = (tmp_path / "store" / "packs").rglob("*.pack")
            pack.write_bytes(bytes(pack.stat().st_size))
        trainer = Trainer(tensor())
        trainer.tries(calls[what])
        kinds = {"small budget": BudgetTooSmall, "damaged": CorruptData}
        assert type(trainer.error) is kinds.get(what, StepExists)
        alive = weakref.ref(trainer.weight)
        store.close()  # which forgets the commit that was in flight
        del trainer
        gc.collect()
        assert alive() is None
