"""A handler that raises may interrupt the main thread wherever CPython looks for signals: nothing stays taken.

A profiler is called at these places, but for loops' ends: when a function begins, and when one of C has returned.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ckptstore
from ckptstore.catalog import waits
from ckptstore.locks import Lock
from ckptstore.testing import lanes
from ckptstore.testing.lanes import FakeDevices

_LATEST = 20
_PLACES = 40
"""About as many are tried of each call, and of each kind."""
_LEAVING = (threading.__file__, contextlib.__file__)


@pytest.fixture(autouse=True)
def gradients():
    """Who interrupts torch itself as it leaves `no_grad` leaves gradients off."""
    yield
    torch.set_grad_enabled(True)


class Interrupted(BaseException):
    """As KeyboardInterrupt, which ends pytest."""


class _Interrupting:
    """Raises at one of the places, counted from 0; `files` tells of which code they are."""

    def __init__(self, place: int) -> None:
        self._place, self.files = place, list[str]()

    def __call__(self, frame: Any, event: str, _: object) -> None:
        if event in ("call", "c_return") and not _is_of_a_device(frame):
            self.files.append(frame.f_code.co_filename)
            if len(self.files) > self._place:
                sys.setprofile(None)
                raise Interrupted


def _is_of_a_device(frame: Any) -> bool:
    """Whether a fake one does it, which a real one does elsewhere."""
    while frame is not None and frame.f_code.co_filename != lanes.__file__:
        frame = frame.f_back
    return frame is not None


def _interrupted_at(place: int, call: Callable[[], object]) -> BaseException | None:
    """What the call raised when it was interrupted there; None where it was over sooner."""
    interrupting = _Interrupting(place)
    try:
        sys.setprofile(interrupting)
        call()
    except Interrupted as error:
        return error
    finally:
        sys.setprofile(None)
    return None


def _some_places(call: Callable[[], object]) -> list[int]:
    """Of those where Python's own code takes and leaves locks, or what a `with` is of, and of the others."""
    counting = _Interrupting(sys.maxsize)
    sys.setprofile(counting)
    call()
    sys.setprofile(None)
    every = range(len(counting.files))
    leaving = [place for place in every if counting.files[place] in _LEAVING]
    return sorted({place for of in (every, leaving) for place in of[:: 1 + len(of) // _PLACES]})


def _state(step: int) -> dict[str, Any]:
    return {"w": [torch.full((300,), float(step)), torch.arange(50) + step]}


def _goes_on(store: ckptstore.Store, name: str) -> None:
    assert store.read(0, "w/0").sum().item() == 0
    store.tag(name, 0)


def _commit_behind(store: ckptstore.Store) -> None:
    latest = store.latest()
    assert latest is not None
    store.commit_async({"x": latest}, step=latest + 1).result()


def _step_behind(store: ckptstore.Store) -> None:
    model = torch.nn.Linear(30, 30)
    optimizer = torch.optim.Adam(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    latest = store.latest()
    assert latest is not None
    handle = store.commit_async({"model": model, "optimizer": optimizer}, step=latest + 1)
    optimizer.step()
    handle.result()
    store.checkout(latest + 1, into={"model": model})


def _delete_latest(store: ckptstore.Store) -> None:
    latest = store.latest()
    if latest:
        store.delete(latest)


CALLS: dict[str, Callable[[ckptstore.Store], object]] = {
    "latest": lambda store: store.latest(),
    "read": lambda store: store.read(0, "w/0"),
    "checkout": lambda store: store.checkout(0),
    "diff": lambda store: store.diff(0, 1),
    "tag": lambda store: store.tag("tagged", 1),
    "delete": _delete_latest,
    "gc": lambda store: store.gc(grace=0),
    "verify": lambda store: store.verify("data"),
    "open": lambda store: ckptstore.open(store.url).close(),
    "close": lambda store: store.close(),
    "commit": lambda store: store.commit({"w": torch.rand(300)}, step=10**6 + (store.latest() or 0)),
    "commit_async": _commit_behind,
    "step": _step_behind,
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
@pytest.mark.parametrize("name", CALLS)
def test_an_interrupted_call_leaves_nothing_taken(tmp_path, monkeypatch, name):
    """Also while the error is kept, as interactive Pythons keep the last one, with all frames that it went through."""
    monkeypatch.setattr(waits, "BUSY_SECONDS", 3.0)
    store = ckptstore.open(tmp_path / "store")
    for step in range(2):
        store.commit(_state(step), step=step)
    CALLS[name](store)
    for place in _some_places(lambda: CALLS[name](store)):
        kept = _interrupted_at(place, lambda: CALLS[name](store))
        other = threading.Thread(target=_goes_on, args=(store, "other"), daemon=True)
        other.start()
        other.join(_LATEST)
        assert not other.is_alive(), f"at place {place}"
        _goes_on(store, "own")
        step = 10_000 + place
        store.commit_async({"x": step}, step=step, run="behind").result(_LATEST)
        del kept
    assert store.verify().ok
    store.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("kind", ["as it lies", "cast"])
@pytest.mark.parametrize("count", [90_000, 6_000_000], ids=["one batch", "several"])
def test_after_an_interrupted_checkout_nothing_is_on_its_way_to_a_device(tmp_path, kind, count):
    dtype = {"as it lies": torch.float32, "cast": torch.float64}[kind]
    saved = torch.arange(count, dtype=torch.float32)
    with ckptstore.open(tmp_path / "store", compression="none") as store, FakeDevices() as devices:
        store.commit({"w": saved}, step=0)
        target = devices.put(torch.zeros(count, dtype=dtype))
        (lane,) = devices.lanes

        def checkout() -> None:
            store.checkout(0, into={"w": target}, allow_cast=kind == "cast")

        checkout()
        for place in _some_places(checkout):
            kept = _interrupted_at(place, checkout)
            target.zero_()
            lane.synchronize()
            assert not target.any(), f"at place {place}"
            checkout()
            assert torch.equal(target, saved.to(dtype)), f"at place {place}"
            del kept


def test_a_lock_is_free_wherever_taking_it_is_interrupted():
    lock = Lock()

    def take() -> None:
        with lock:
            pass

    for place in _some_places(take):
        assert _interrupted_at(place, take) is not None
        other = threading.Thread(target=take, daemon=True)
        other.start()
        other.join(_LATEST)
        assert not other.is_alive(), f"at place {place}"


def test_who_is_interrupted_within_a_lock_keeps_what_was_taken_before():
    lock, free = Lock(), []

    def take() -> None:
        with lock:
            pass

    with lock:
        for place in _some_places(take):
            _interrupted_at(place, take)
            other = threading.Thread(target=lambda: free.append(lock.acquire(blocking=False)))
            other.start()
            other.join()
    assert free and not any(free)
