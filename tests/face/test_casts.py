"""Checkout into targets of other dtypes: what `Tensor.copy_` makes of the commit, or a refusal that changes nothing."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import ckptstore
from ckptstore import BudgetTooSmall, CheckpointManager, StateMismatch
from ckptstore.state.arrays import chunk_bytes
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.tree import flatten
from ckptstore.testing.equality import assert_same
from ckptstore.testing.lanes import FakeDevices
from ckptstore.testing.states import NUMPY_DTYPES, TORCH_DTYPES

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about complex32 and sparse tensors

USUAL = [torch.float32, torch.bfloat16, torch.float16, torch.float64]
HALF = torch.bfloat16


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


# which casts there are


def values(dtype: torch.dtype, target: torch.dtype, count: int, seed: int) -> Tensor:
    """Numbers of a dtype; where torch leaves open what becomes of them, for integers out of range, there are none."""
    random = torch.Generator().manual_seed(seed)
    if dtype.itemsize == 1 and not (dtype.is_floating_point or dtype in {torch.bool, torch.int8, torch.uint8}):
        return torch.randint(0, 2, (count,), dtype=torch.uint8, generator=random).view(dtype)
    if dtype is torch.bits16:
        return torch.randint(0, 9, (count,), dtype=torch.int16, generator=random).view(dtype)
    found = torch.randn(count, dtype=torch.float64, generator=random) * 30
    if target.is_floating_point or target.is_complex:
        found[::7], found[3::11] = float("inf"), float("nan")
    else:
        found = found.abs().clamp(max=100)
    if dtype is torch.float4_e2m1fn_x2:
        return found.to(torch.uint8).view(dtype)
    return found.nan_to_num(3, 5).to(dtype) if not (dtype.is_floating_point or dtype.is_complex) else found.to(dtype)


def cast(source: Tensor, target: torch.dtype) -> Tensor | None:
    """What `Tensor.copy_` makes of it, or None where that cannot be or loses imaginary parts."""
    if source.is_complex() and not target.is_complex:
        return None
    try:
        torch.empty(1, dtype=target).copy_(torch.empty(1, dtype=source.dtype))  # what has no elements needs no kernel
        return torch.empty(source.shape, dtype=target).copy_(source)
    except (RuntimeError, NotImplementedError):
        return None


def assert_equal_bits(found: Tensor, expected: Tensor) -> None:
    """Of all numbers; torch itself gives NaN other bits from place to place."""
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    one, other = (np.frombuffer(bits(tensor), f"V{tensor.itemsize}") for tensor in (found, expected))
    differ = one != other
    if differ.any():
        wide = torch.complex128 if expected.is_complex() else torch.float64
        both = found.to(wide).isnan() & expected.to(wide).isnan()
        assert both.reshape(-1).numpy()[differ].all()


def bits(tensor: Tensor) -> bytes:
    return bytes(chunk_bytes(tensor, (0,) * tensor.ndim, tuple(tensor.shape)))


PLACES: dict[str, Any] = {
    "plain": torch.empty,
    "apart": lambda *shape, dtype: torch.empty(2 * shape[0], *shape[1:], dtype=dtype)[::2],
    "transposed": lambda *shape, dtype: torch.empty(*shape[::-1], dtype=dtype).t(),
}


@settings(max_examples=300, suppress_health_check=list(HealthCheck), deadline=None)
@given(
    dtype=st.sampled_from(USUAL) | st.sampled_from(TORCH_DTYPES),
    to=st.sampled_from(USUAL) | st.sampled_from(TORCH_DTYPES),
    place=st.sampled_from([*PLACES]),
    rows=st.sampled_from([1, 3, 60]),
    columns=st.sampled_from([0, 1, 5, 90]),
    seed=st.integers(0, 99),
)
def test_a_cast_is_what_copy_makes_of_it(store, dtype, to, place, rows, columns, seed):
    step = (store.latest() or 0) + 1
    source = values(dtype, to, rows * columns, seed).view(rows, columns)
    store.commit({"t": source}, step=step)
    live: dict[str, Any] = {"t": PLACES[place](rows, columns, dtype=to)}
    target, expected = live["t"], source if dtype is to else cast(source, to)
    before = bits(target), target.data_ptr(), target.stride()
    if expected is None:
        with pytest.raises(StateMismatch) as caught:
            store.checkout(step, into=live, allow_cast=True)
        assert "allow_cast" not in str(caught.value)
        assert bits(target) == before[0]
    else:
        store.checkout(step, into=live, allow_cast=True)
        assert_equal_bits(target, expected)
    assert live["t"] is target
    assert (target.data_ptr(), target.stride()) == before[1:]


@pytest.mark.parametrize("dtype", NUMPY_DTYPES)
@pytest.mark.parametrize("to", ["<f4", "<f8", "<i8", "|b1", "<c16", ">f4", torch.bfloat16, torch.complex64], ids=str)
def test_arrays_of_numpy_are_cast_by_torch(store, dtype, to):
    array = np.zeros(3000, dtype) if np.dtype(dtype).kind in "mMUSV" else (np.arange(3000) % 90).astype(dtype)
    store.commit({"a": array}, step=0)
    target = torch.zeros(3000, dtype=to) if isinstance(to, torch.dtype) else np.zeros(6000, to)[::-2]
    expected: Any = None
    try:
        source = torch.from_numpy(array)
        wanted = to if isinstance(to, torch.dtype) else torch.from_numpy(np.zeros(0, to)).dtype
        expected = None if source.is_complex() and not wanted.is_complex else source.to(wanted)
    except (TypeError, ValueError):
        expected = None
    if dtype == to:
        expected = array
    if expected is None:
        with pytest.raises(StateMismatch):
            store.checkout(0, into={"a": target}, allow_cast=True)
        assert not np.asarray(target if isinstance(target, np.ndarray) else target.to(torch.complex64)).any()
        return
    store.checkout(0, into={"a": target}, allow_cast=True)
    assert np.array_equal(target, expected) if isinstance(target, np.ndarray) else torch.equal(target, expected)


def test_tensors_go_into_arrays(store):
    store.commit({"t": noise(40, 50)}, step=0)
    target = np.zeros((50, 40)).T[::-1]
    store.checkout(0, into={"t": target}, allow_cast=True)
    assert np.array_equal(target, noise(40, 50).double().numpy())


# where casts go


@pytest.mark.parametrize("chunk_bytes", [4096, 8 << 20])
def test_large_tensors_are_cast_slice_by_slice(tmp_path, chunk_bytes):
    source = noise(1500, 1300)
    with ckptstore.open(tmp_path / "store", chunk_bytes=chunk_bytes) as store:
        store.commit({"t": source, "row": source.view(1, -1)}, step=0)
        live = {"t": torch.empty(1300, 1500, dtype=HALF).t(), "row": torch.empty(1, source.numel(), dtype=HALF)}
        store.checkout(0, into=live, allow_cast=True)
    assert torch.equal(live["t"], source.to(HALF))
    assert torch.equal(live["row"], source.to(HALF).view(1, -1))


def test_lazy_targets_take_values(store):
    whole = noise(900).to(torch.complex128)
    store.commit({"conj": whole, "neg": noise(900).double()}, step=0)
    around = torch.zeros(900, dtype=torch.complex64)
    store.checkout(0, into={"conj": around.conj()}, allow_cast=True)
    assert torch.equal(around, whole.conj().to(torch.complex64))
    store.checkout(0, into={"neg": around.conj().imag}, allow_cast=True)
    assert torch.equal(around.imag, -noise(900))


def model(dtype: torch.dtype = torch.float32, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(40, 64), nn.BatchNorm1d(64), nn.Linear(64, 40))
    return made.to(dtype)


def test_a_module_keeps_its_parameters(store):
    committed, live = model(), model(HALF, 1)
    store.commit({"model": committed}, step=0)
    before = {name: (id(own), own.data_ptr(), own.requires_grad) for name, own in live.named_parameters()}
    version = live[0].weight._version
    store.checkout(0, into={"model": live}, allow_cast=True)
    assert {name: (id(own), own.data_ptr(), own.requires_grad) for name, own in live.named_parameters()} == before
    assert live[0].weight._version > version
    assert_same(live.state_dict(), committed.to(HALF).state_dict())


def test_tied_tensors_stay_tied(store):
    shared = nn.Parameter(noise(60, 50))
    store.commit({"model": {"in": shared, "out": shared, "other": noise(9)}}, step=0)
    tied = nn.Parameter(torch.zeros(60, 50, dtype=HALF))
    live = {"model": {"in": tied, "out": tied, "other": torch.zeros(9, dtype=torch.float64)}}
    store.checkout(0, into=live, allow_cast=True)
    assert live["model"]["in"] is live["model"]["out"] is tied
    assert torch.equal(tied, noise(60, 50).to(HALF))
    apart = {"model": {"in": torch.zeros(60, 50, dtype=HALF), "out": torch.zeros(60, 50), "other": torch.zeros(9)}}
    store.checkout(0, into=apart, allow_cast=True)
    assert torch.equal(apart["model"]["in"], noise(60, 50).to(HALF))
    assert torch.equal(apart["model"]["out"], noise(60, 50))


@pytest.mark.parametrize("to", [HALF, torch.float64], ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_tensors_on_devices(store, to, seed):
    source = noise(70_001)
    state = {"plain": source, "transposed": source[:70_000].view(350, 200).t(), "tiny": torch.tensor(1.5)}
    store.commit(state, step=0)
    with FakeDevices(seed) as devices:
        live = {
            "plain": devices.put(torch.zeros(70_001, dtype=to)),
            "transposed": devices.put(torch.zeros(350, 200, dtype=to)).t(),
            "tiny": devices.put(torch.zeros((), dtype=to)),
        }
        before = dict(live)
        lane = devices.lanes[0]
        lane.train(lambda: live["plain"].fill_(7))
        store.checkout(0, into=live, allow_cast=True, memory_budget_bytes=1 << 18)
        lane.train(lambda: live["plain"].mul_(2))
        lane.synchronize()
        assert lane.crossed == sum(tensor.nbytes for tensor in live.values())
    assert all(live[name] is before[name] for name in live)
    assert_same(live, {name: tensor.to(to) * (1 + (name == "plain")) for name, tensor in state.items()})


# optimizers


def trained(kind: Any, dtype: torch.dtype, steps: int, seed: int = 0) -> tuple[Any, Any]:
    built = model(dtype, seed)
    optimizer = kind(built.parameters())
    for step in range(steps):
        optimizer.step(partial(loss_of, built, optimizer, noise(8, 40, seed=step).to(dtype)))
    return built, optimizer


def loss_of(built: Any, optimizer: Any, batch: Tensor) -> Tensor:
    optimizer.zero_grad()
    loss: Tensor = built(batch).square().mean()
    loss.backward()
    return loss


def momentum(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


OPTIMIZERS = [torch.optim.AdamW, torch.optim.NAdam, torch.optim.Adamax, torch.optim.ASGD, torch.optim.LBFGS, momentum]


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_fresh_optimizer_is_what_its_own_load_makes_of_it(store, kind):
    built, optimizer = trained(kind, torch.float32, 2)
    store.commit({"model": built, "optim": optimizer}, step=0)
    live, loaded = trained(kind, HALF, 0, seed=1)
    own = copy.deepcopy(loaded)
    own.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    store.checkout(0, into={"model": live, "optim": loaded}, allow_cast=True)
    assert_same(loaded.state_dict()["state"], own.state_dict()["state"])
    loaded.step(partial(loss_of, live, loaded, noise(8, 40).to(HALF)))


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_state_that_an_optimizer_has_keeps_its_dtypes(store, kind):
    built, optimizer = trained(kind, torch.float32, 2)
    store.commit({"model": built, "optim": optimizer}, step=0)
    live, loaded = trained(kind, HALF, 2, seed=1)
    forms = tensors_of(loaded)
    with pytest.raises(StateMismatch, match=r"optim/state/0/.*allow_cast=True"):
        store.checkout(0, into={"optim": loaded})
    store.checkout(0, into={"model": live, "optim": loaded}, allow_cast=True)
    dtypes = {name: forms[name].dtype if name in forms else HALF for name in tensors_of(optimizer)}
    assert_same(tensors_of(loaded), {name: tensor.to(dtypes[name]) for name, tensor in tensors_of(optimizer).items()})
    loaded.step(partial(loss_of, live, loaded, noise(8, 40).to(HALF)))


def test_state_that_an_optimizer_has_not_yet_gets_its_dtype_where_none_stands(store):
    built, optimizer = trained(torch.optim.LBFGS, torch.float32, 2)
    store.commit({"model": built, "optim": optimizer}, step=0)
    live, loaded = trained(torch.optim.LBFGS, HALF, 2, seed=1)
    (state,) = loaded.state.values()
    state["al"][1:] = [None] * (len(state["al"]) - 1)
    store.checkout(0, into={"model": live, "optim": loaded}, allow_cast=True)
    assert_same(tensors_of(loaded), {name: tensor.to(HALF) for name, tensor in tensors_of(optimizer).items()})


def tensors_of(optimizer: Any) -> dict[str, Tensor]:
    flat = flatten({"state": optimizer.state_dict()["state"]}, allow_pickle=False)
    found = {path: leaf.tensor for path, leaf in flat.leaves.items() if isinstance(leaf, TensorLeaf)}
    return {path: tensor.clone() for path, tensor in found.items() if isinstance(tensor, Tensor)}


def test_state_of_another_dtype_than_its_parameter_is_filled_where_it_is(store):
    built, optimizer = trained(torch.optim.AdamW, torch.float32, 1)
    store.commit({"model": built, "optim": optimizer}, step=0)
    live, loaded = trained(torch.optim.AdamW, HALF, 1)
    for state in loaded.state.values():
        state["exp_avg"] = state["exp_avg"].float()
    store.checkout(0, into={"model": live, "optim": loaded}, allow_cast=True)
    mine, theirs = loaded.state_dict()["state"][0], optimizer.state_dict()["state"][0]
    assert_same(mine["exp_avg"], theirs["exp_avg"])
    assert_same(mine["exp_avg_sq"], theirs["exp_avg_sq"].to(HALF))


def test_integers_of_a_state_stay_what_they_are(store):
    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            for parameter in self.param_groups[0]["params"]:
                self.state[parameter] = {"seen": torch.full((3,), 1001), "scale": torch.full((3,), 0.1)}

    one, other = nn.Parameter(noise(30)), nn.Parameter(noise(30).to(HALF))
    optimizer, loaded = Counting([one]), Counting([other])
    optimizer.step()
    store.commit({"optim": optimizer}, step=0)
    store.checkout(0, into={"optim": loaded}, allow_cast=True)
    assert_same(loaded.state[other]["seen"], torch.full((3,), 1001))
    assert_same(loaded.state[other]["scale"], torch.full((3,), 0.1).to(HALF))


class Owner:
    """A stateful object that judges its state itself."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_other_objects_get_the_commits_state_as_it_was(store):
    store.commit({"own": Owner({"t": noise(30), "n": 1})}, step=0)
    live = Owner({"t": torch.zeros(30, dtype=HALF), "n": 0})
    store.checkout(0, into={"own": live}, allow_cast=True)
    assert_same(live.state, {"t": noise(30), "n": 1})


# what is refused


def test_who_does_not_ask_is_told_how_to(store):
    store.commit({"a": noise(900), "b": noise(900), "c": noise(900)}, step=0)
    live = {"a": torch.zeros(900, dtype=HALF), "b": torch.zeros(900), "c": torch.zeros(30, 30)}
    with pytest.raises(StateMismatch) as caught:
        store.checkout(0, into=live)
    lines = {line.partition(":")[0]: line for line in caught.value.different}
    assert set(lines) == {"a", "c"}
    assert "allow_cast=True" in lines["a"]
    assert "allow_cast" not in lines["c"]
    assert not any(tensor.any() for tensor in live.values())


def read_only() -> Any:
    array = np.zeros(900)
    array.flags.writeable = False
    return array


REFUSED = {
    "another shape": lambda: torch.zeros(30, 30, dtype=HALF),
    "expanded": lambda: torch.zeros(1, dtype=HALF).expand(900),
    "read-only": read_only,
    "a value": lambda: 5,
    "sparse": lambda: torch.zeros(900, dtype=HALF).to_sparse(),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_cast_is_refused_before_anything_is_written(store, name):
    store.commit({"first": noise(900), "t": noise(900)}, step=0)
    live: dict[str, Any] = {"first": torch.zeros(900, dtype=HALF), "t": REFUSED[name]()}
    with pytest.raises(StateMismatch, match=r"\bt\b"):
        store.checkout(0, into=live, allow_cast=True)
    assert not live["first"].any()


@pytest.mark.parametrize("kind", ["to_sparse", "to_sparse_csr"])
def test_sparse_tensors_are_not_cast(store, kind):
    store.commit({"s": getattr(torch.eye(60), kind)()}, step=0)
    live = getattr(torch.eye(60, dtype=torch.float64) * 2, kind)()
    for allow_cast in (False, True):
        with pytest.raises(StateMismatch) as caught:
            store.checkout(0, into={"s": live}, allow_cast=allow_cast)
        assert "allow_cast" not in str(caught.value)
    assert torch.equal(live.to_dense(), torch.eye(60, dtype=torch.float64) * 2)


def test_quantised_tensors_are_not_cast(store):
    store.commit({"q": torch.quantize_per_tensor(torch.ones(90), 0.5, 0, torch.qint8)}, step=0)
    live = torch.quantize_per_tensor(torch.zeros(90), 0.5, 0, torch.quint8)
    with pytest.raises(StateMismatch):
        store.checkout(0, into={"q": live}, allow_cast=True)
    assert not live.int_repr().any()


def test_tensors_that_are_two_in_the_commit_are_not_one_after_a_cast(store):
    store.commit({"a": noise(900), "b": noise(900).double()}, step=0)
    tied = torch.zeros(900, dtype=HALF)
    with pytest.raises(StateMismatch, match="b: tied to a"):
        store.checkout(0, into={"a": tied, "b": tied}, allow_cast=True)
    assert not tied.any()


def test_a_budget_that_does_not_do_is_reported_first(store):
    store.commit({"t": noise(9000)}, step=0)
    live = {"t": torch.zeros(9000, dtype=HALF)}
    with pytest.raises(BudgetTooSmall):
        store.checkout(0, into=live, allow_cast=True, memory_budget_bytes=10)
    assert not live["t"].any()


def test_without_into_there_is_nothing_to_cast(store):
    store.commit({"t": noise(900)}, step=0)
    assert_same(store.checkout(0, allow_cast=True), {"t": noise(900)})


def test_a_manager_passes_it_on(store):
    with CheckpointManager(store, 1) as manager:
        manager.save(0, {"t": noise(900)})
        manager.join()
        live = {"t": torch.zeros(900, dtype=HALF)}
        with pytest.raises(StateMismatch, match="allow_cast=True"):
            manager.restore(into=live)
        manager.restore(into=live, allow_cast=True)
    assert torch.equal(live["t"], noise(900).to(HALF))
