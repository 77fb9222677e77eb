"""Commits whose dtypes this process does not have: what has one is named, and the rest is there."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import ckptstore
from ckptstore.operations import numbers
from ckptstore.state import dtypes
from ckptstore.testing.equality import assert_same

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about quantised tensors
PLAIN = {"weight": torch.ones(4)}


@pytest.fixture
def older(monkeypatch):
    """From its call on torch lacks float16 and qint8, and numpy float16."""

    def without_half(plain):
        if plain == "<f2":
            raise TypeError("not understood")
        return np.dtype(plain)

    def forget_what_is_known():
        dtypes.known_numpy_dtype.cache_clear()
        numbers._has_numbers.cache_clear()

    def forget():
        for name in ("float16", "qint8"):
            monkeypatch.delitem(dtypes._TORCH_DTYPES, name)
        monkeypatch.setattr(dtypes, "_from_plain", without_half)
        forget_what_is_known()

    yield forget
    forget_what_is_known()


@pytest.mark.parametrize(
    "leaf",
    [
        lambda: torch.ones(5, dtype=torch.float16),
        lambda: torch.ones(5000, dtype=torch.float16),
        lambda: np.ones(5, np.float16),
        lambda: torch.float16,
        lambda: np.dtype(np.float16),
        lambda: np.float16(1),
        lambda: [1, {"inner": torch.float16}],
        lambda: torch.quantize_per_tensor(torch.ones(5), 0.5, 0, torch.qint8),
    ],
)
def test_what_has_such_a_dtype_is_named(store, older, leaf):
    store.commit({"model": {"part": leaf(), "plain": PLAIN}}, step=0)
    older()
    named = r"^'model/part.*(torch|numpy) [^ ]* has no dtype '(float16|<f2|qint8)': use a newer one"
    for read in (store.checkout, lambda _: store.read(0, "model/part")):
        with pytest.raises(ckptstore.UnknownType, match=named):
            read(0)
    assert_same(store.read(0, "model/plain"), PLAIN)
    live = {"model": {"plain": {"weight": torch.zeros(4)}}}
    store.checkout(0, into=live, paths=["model/plain/*"])
    assert_same(live["model"]["plain"], PLAIN)


def test_a_diff_tells_all_but_its_numbers(store, older):
    for step in range(2):
        state = {"torch": torch.full((5,), step, dtype=torch.float16), "numpy": np.full(5, step, np.float16)}
        store.commit(state | {"known": torch.full((5,), float(step))}, step=step)
    older()
    found = {change.path: change for change in store.diff(0, 1, values=True).changes}
    assert {path: change.kind for path, change in found.items()} == dict.fromkeys(
        ("torch", "numpy", "known"), "changed"
    )
    assert found["torch"].numbers is None
    assert found["numpy"].numbers is None
    assert found["known"].numbers.max_abs == 1
