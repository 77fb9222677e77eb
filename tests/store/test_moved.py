"""A folder that is moved away while a store is open: nothing goes to what lies at its path by then."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
from collections.abc import Callable
from typing import Any

import pytest
import torch

import ckptstore
from ckptstore.testing.equality import assert_same


def _state(step: int) -> dict[str, Any]:
    return {"w": torch.arange(3000.0) + step}


def _fork(_: ckptstore.Store) -> None:
    child = multiprocessing.get_context("fork").Process(target=lambda: None)
    child.start()
    child.join()


MEANWHILE: dict[str, Callable[[ckptstore.Store], object]] = {
    "nothing": lambda _: None,
    "a fork": _fork,
    "closed": lambda store: store.close(),
}
CALLS: dict[str, Callable[[ckptstore.Store], object]] = {
    "gc": lambda store: store.gc(keep=ckptstore.KeepLast(1), grace=0),
    "delete": lambda store: store.delete(4),
    "restore": lambda store: store.restore(3),
    "untag": lambda store: store.untag("best"),
    "tag": lambda store: store.tag("worst", 4),
    "commit": lambda store: store.commit(_state(9), step=9),
    "steps": lambda store: store.steps(),
    "read": lambda store: store.read(4, "w"),
}


@pytest.mark.parametrize("linked", [False, True], ids=["moved", "linked anew"])
@pytest.mark.parametrize("meanwhile", MEANWHILE)
@pytest.mark.parametrize("call", CALLS)
def test_nothing_goes_to_another_store_at_the_same_path(tmp_path, call, meanwhile, linked):
    place = tmp_path / "store"
    if linked:
        (tmp_path / "one").mkdir()
        place.symlink_to(tmp_path / "one")
    with ckptstore.open(place) as store:
        for step in range(3):
            store.commit(_state(step), step=step)
        if linked:
            place.unlink()
            (tmp_path / "two").mkdir()
            place.symlink_to(tmp_path / "two")
        else:
            place.rename(tmp_path / "one")
        with ckptstore.open(place) as other:
            for step in range(5):
                other.commit(_state(100 + step), step=step)
            other.tag("best", 0)
            other.delete(3)
        MEANWHILE[meanwhile](store)
        with pytest.raises(
            ckptstore.CatalogError, match=f"{place}.* another store .*open the store where it was moved"
        ):
            CALLS[call](store)
    with ckptstore.open(place) as other:
        assert other.steps() == [0, 1, 2, 4]
        assert other.tags() == {"best": 0}
        assert other.verify().ok
        other.restore(3)
    with ckptstore.open(tmp_path / "one") as moved:
        assert moved.steps() == [0, 1, 2]
        assert moved.verify().ok


def test_a_store_goes_on_where_a_copy_of_it_lies_by_now(tmp_path):
    """As when it outgrows its disk: a commit is whole in one of the two places."""
    place, larger = tmp_path / "store", tmp_path / "larger"
    with ckptstore.open(place) as store:
        store.commit(_state(0), step=0)
        shutil.copytree(place, larger)
        place.rename(tmp_path / "old")
        place.symlink_to(larger)
        store.commit(_state(1), step=1)
    with ckptstore.open(place) as store:
        assert_same(store.checkout(1), _state(1))
        assert store.verify().ok
    with ckptstore.open(tmp_path / "old") as old:
        assert old.steps() == [0]
        assert old.verify().ok


def test_a_store_comes_back(tmp_path):
    place = tmp_path / "store"
    with ckptstore.open(place) as store:
        store.commit(_state(0), step=0)
        place.rename(tmp_path / "away")
        with pytest.raises(ckptstore.CkptStoreError, match="check that it is there"):
            store.steps()
        assert not place.exists()
        (tmp_path / "away").rename(place)
        store.commit(_state(1), step=1)
        assert store.steps() == [0, 1]


def test_a_catalog_that_was_made_anew_is_used(tmp_path):
    place = tmp_path / "store"
    with ckptstore.open(place) as store:
        store.commit(_state(0), step=0)
        for name in [name for name in os.listdir(place) if name.startswith("catalog")]:
            (place / name).rename(tmp_path / name)
        ckptstore.rebuild_catalog(place)
        store.commit(_state(1), step=1)
    with ckptstore.open(place) as store:
        assert store.steps() == [0, 1]


def test_a_catalog_that_was_handed_to_another_process_is_of_the_same_store(tmp_path):
    place = tmp_path / "store"
    with ckptstore.open(place) as store:
        store.commit(_state(0), step=0)
        pickled = pickle.dumps(store._parts.catalog)
        place.rename(tmp_path / "moved")
    with ckptstore.open(place) as other:
        other.commit(_state(1), step=1)
    with pytest.raises(ckptstore.CatalogError, match="another store"):
        pickle.loads(pickled).steps("main")
