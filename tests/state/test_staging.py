"""What is copied, and when."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errands import uninterrupted
from ckptstore.errors import StateError
from ckptstore.format.digests import digest_named
from ckptstore.state import settling
from ckptstore.state.addresses import pointer
from ckptstore.state.kept import KeptBuffers
from ckptstore.state.lending import live_leaf
from ckptstore.state.staging import Stager
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.tree import flatten
from ckptstore.state.unflatten import unflatten
from ckptstore.state.values import decode
from ckptstore.testing.equality import assert_same
from ckptstore.testing.states import dense_tensors, numpy_arrays
from tests.integrations.tiled_planners import Far

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about complex32
FINGERPRINT = digest_named("xxh3_128").compute


class Counting(KeptBuffers):
    def __init__(self, watched):
        super().__init__()
        self._watched = watched

    def copy(self, pairs):
        self._watched.copied += sum(len(source) for source, _ in pairs)
        super().copy(pairs)


class Watched(Stager):
    """Counts how many bytes it copied and looked at."""

    def __init__(self, *, blind: bool = False) -> None:
        self.seen = self.copied = 0
        super().__init__(None if blind else self._look)
        self._buffers = Counting(self)

    def _look(self, data):
        self.seen += len(data)
        return FINGERPRINT(data)

    def counted(self, state, *, just_in_time=True):
        """Stage, and say what that took."""
        self.seen = self.copied = 0
        staged = self.stage(flatten(state), just_in_time=just_in_time)
        counts = self.copied, self.seen
        staged.just_in_time.close()
        self.remember()
        return counts


def test_tensors_without_addresses_are_fetched_as_a_whole():
    tensor = torch.arange(3000.0)
    flat = flatten({"x": tensor})
    flat.leaves["x"] = TensorLeaf(tensor.as_subclass(Far))
    looked = Stager(None).look(flat).leaves["x"]
    assert isinstance(looked, TensorLeaf)
    assert type(looked.tensor) is torch.Tensor
    assert looked.tensor.equal(tensor)


@pytest.fixture
def stager():
    made = Watched()
    yield made
    made.close()


def test_what_did_not_change_is_hashed_and_not_copied(stager):
    state: dict[str, Any] = {"still": torch.randn(5000), "array": np.zeros(3000), "moving": torch.randn(4000)}
    still, moving = 20_000 + 24_000, 16_000
    assert stager.counted(state) == (still + moving, 0)
    state["moving"].add_(1)
    assert stager.counted(state) == (moving, still + moving)
    state["moving"].add_(1)
    assert stager.counted(state) == (moving, still)  # it is known to change, and copied unseen
    assert stager.counted(state) == (moving, still)
    assert stager.counted(state) == (0, still + moving)
    state["array"][7] = -0.0
    assert stager.counted(state) == (24_000, still + moving)


def test_without_a_fast_digest_everything_is_copied():
    stager = Watched(blind=True)
    for _ in range(3):
        assert stager.counted({"still": torch.zeros(5000)}) == (20_000, 0)
    stager.close()


def test_memory_is_used_again(stager):
    state: dict[str, Any] = {"w": torch.randn(5000), "n": np.zeros(3000), "large": torch.randn(3 << 20)}
    places = []
    for _ in range(3):
        staged = stager.stage(flatten(state), just_in_time=True)
        places.append([pointer(leaf.tensor) for leaf in staged.flat.leaves.values() if isinstance(leaf, TensorLeaf)])
        assert_same(unflatten(staged.flat.containers, tensors(staged.flat)), state)
        state["w"].add_(1)
    assert places[0] == places[1] == places[2]
    assert stager.counted({"w": state["w"]})
    assert stager._buffers._held.keys() == {"w"}


def tensors(flat):
    return {
        path: leaf.tensor if isinstance(leaf, TensorLeaf) else decode(leaf, path) for path, leaf in flat.leaves.items()
    }


def unmoved(staged, state):
    """Paths of arrays that are where they were."""
    now = {path: leaf for path, leaf in staged.flat.leaves.items() if isinstance(leaf, TensorLeaf)}
    before = flatten(state).leaves
    return {path for path, leaf in now.items() if pointer(leaf.tensor) == pointer(before[path].tensor)}


@pytest.mark.parametrize("between", ["at once", "just in time", "not remembered"])
def test_what_comes_back_is_not_taken_for_what_came_between(stager, between):
    weight = torch.nn.Parameter(torch.randn(50, 60))
    state = {"w": weight, "o": torch.optim.SGD([weight])}
    first, other = weight.detach().clone(), torch.randn(50, 60)
    for content, just_in_time in ((first, False), (first, False), (other, between == "just in time"), (first, False)):
        weight.data.copy_(content)
        staged = stager.stage(flatten(state), just_in_time=just_in_time)
        staged.just_in_time.settle_all()
        if content is first or between != "not remembered":
            stager.remember()
    assert_same(tensors(staged.flat)["w"].detach(), first)


def test_only_what_optimizers_own_stays_live(stager):
    weight, frozen = torch.nn.Parameter(torch.randn(50, 60)), torch.randn(50, 60)
    optimizer = torch.optim.SGD([{"params": [weight], "lr": torch.full((), 0.1)}], momentum=0.9)
    weight.grad = torch.ones(50, 60)
    optimizer.step()
    arena = torch.randn(2, 3000)
    second = torch.optim.SGD([torch.nn.Parameter(arena[0])])
    state = {"w": weight, "view": weight[:20], "frozen": frozen, "o": [optimizer, {"s": second}], "arena": arena}
    state["owned"] = arena[0]
    staged = stager.stage(flatten(state), just_in_time=True)
    assert unmoved(staged, state) == {"w", "o/0/state/0/momentum_buffer", "owned"}
    assert_same(staged.flat.leaves["w"].tensor, weight)
    staged.just_in_time.close()
    staged = stager.stage(flatten(state), just_in_time=False)
    assert unmoved(staged, state) == set()


def test_what_a_call_of_a_module_changes_is_copied(stager):
    model = torch.nn.Sequential(torch.nn.Embedding(50, 60, max_norm=1.0), torch.nn.Linear(60, 50))
    state = {"model": model, "o": torch.optim.SGD(model.parameters())}
    staged = stager.stage(flatten(state), just_in_time=True)
    assert unmoved(staged, {"model": model.state_dict()}) == {"model/1.weight"}
    staged.just_in_time.close()


def test_each_optimizer_waits_once_for_what_it_owns(stager, monkeypatch):
    """Also while leaves of others are still on loan, or live."""
    weights = [torch.nn.Parameter(torch.randn(50, 60)) for _ in range(5)]
    optimizers = [torch.optim.SGD([weight]) for weight in weights]
    staged = stager.stage(flatten({"w": weights, "o": optimizers}), just_in_time=True)
    errands = []

    def counted(work):
        errands.append(work)
        uninterrupted(work)

    monkeypatch.setattr(settling, "uninterrupted", counted)
    lenders = [leaf.lender for path, leaf in staged.flat.leaves.items() if path.startswith("w/")]
    _, loan = lenders[1].borrow(0, 100)
    others = [optimizers[0], *optimizers[2:4]]
    for count in (3, 3, 3):
        for optimizer in others:
            optimizer.step()
        assert len(errands) == count
    assert [lender.may_change() for lender in lenders] == [True, False, True, True, False]
    loan.end()
    for count in (5, 5):
        for optimizer in optimizers:
            optimizer.step()
        assert len(errands) == count
    torch.optim.SGD(weights).step()
    assert len(errands) == 5 and all(lender.may_change() for lender in lenders)
    staged.just_in_time.close()


@given(st.lists(dense_tensors() | numpy_arrays(), min_size=1, max_size=4))
def test_every_array_is_staged_as_it_is(arrays):
    stager = Stager(FINGERPRINT)
    for _ in range(2):
        staged = stager.stage(flatten({"arrays": arrays}), just_in_time=True)
        assert_same(unflatten(staged.flat.containers, tensors(staged.flat)), {"arrays": arrays})
        stager.remember()
    stager.close()


def settled_with(loans):
    """A lender of numbers of whose loans some are at rest, claimed and settled."""
    buffers, tensor = KeptBuffers(), torch.arange(10, dtype=torch.int32)
    lender = live_leaf("x", TensorLeaf(tensor), [], buffers).lender
    made = [loan for at in range(0, 4 * len(loans), 4) if (loan := lender.borrow(at, at + 4)[1]) is not None]
    for loan, rests in zip(made, loans, strict=True):
        if rests:
            loan.rest()
    buffers.copy(lender.claim())
    lender.settle(well=True)
    return buffers, tensor, lender, made


def test_what_is_at_rest_is_copied_before_the_tensor_changes():
    buffers, tensor, lender, (first, second) = settled_with([True, True])
    before = bytes(tensor.numpy())
    assert not lender.may_change()
    lender.wait()
    assert lender.may_change()
    tensor.add_(1)
    assert bytes(first.keep()) + bytes(second.keep()) == before[:8]
    for loan in (first, second):
        loan.end()
        assert lender.may_change()
    assert bytes(lender.copied().content) == before
    buffers.close()


def test_what_is_read_again_is_waited_for():
    buffers, _, lender, (first, second) = settled_with([True, False])
    first.keep()
    waiting = threading.Thread(target=lender.wait)
    waiting.start()
    second.rest()
    waiting.join(0.1)
    assert waiting.is_alive()
    first.end()
    waiting.join()
    assert lender.may_change()
    buffers.close()


def test_what_changes_before_it_is_copied_at_rest_is_reported():
    buffers, tensor, lender, _ = settled_with([True])
    tensor.add_(1)
    lender.wait()
    with pytest.raises(StateError, match="'x' was changed"):
        lender.check()
    buffers.close()


def test_a_tensor_that_is_lent_may_not_change_though_it_was_settled():
    buffers = KeptBuffers()
    lender = live_leaf("x", TensorLeaf(torch.zeros(10)), [], buffers).lender
    _, loan = lender.borrow(0, 4)
    assert not lender.may_change()
    buffers.copy(lender.claim())
    assert not lender.may_change()
    lender.settle(well=True)
    assert not lender.may_change()
    assert loan is not None
    loan.end()
    assert lender.may_change()
    buffers.close()
