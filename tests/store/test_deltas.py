"""What rests on other chunks is as safe as they are: through commits, forks, gc, damage, repair and rebuilding."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch

import ckptstore
from ckptstore.catalog.opening import open_catalog
from ckptstore.errors import BudgetTooSmall, CorruptData, GcRefused, InvalidArgument, MissingData, StoreTooNew
from ckptstore.format import version
from ckptstore.format.packs import pack_key
from ckptstore.store import Store
from ckptstore.testing.audit import CHUNK_BYTES, Site, assert_held, assert_nothing_leaked, files, site_of
from ckptstore.testing.equality import assert_same
from ckptstore.testing.faults import Meanwhile
from ckptstore.testing.memory import peak_of

NUMBERS = CHUNK_BYTES
"""Of a tensor of four chunks."""


def noise(seed, numbers=NUMBERS):
    return torch.randn(numbers, generator=torch.Generator().manual_seed(seed))


def drift(step, seed=0):
    """Weights that move little with each step."""
    return noise(seed) * 0.02 + noise(1000 + step) * step * 1e-6


def state(step, *extra):
    """A state of 128 KiB that moves little with each step, and 64 KiB of noise for each extra number."""
    model = {"w": drift(step), "v": drift(step, 1)}
    return {"model": model, "step": step, "extra": {str(number): noise(5000 + number) for number in extra}}


def opened(place, **settings):
    return site_of(place).open(**settings)


@pytest.fixture
def place(tmp_path):
    """Steps 0 to 3; what moves in 1 to 3 rests on step 0."""
    with opened(tmp_path / "store", chunk_bytes=CHUNK_BYTES) as store:
        for step in range(4):
            store.commit(state(step), step=step)
    return tmp_path / "store"


def frames(place):
    """Every place of a chunk in a live pack, from the oldest pack on."""
    with closing(open_catalog(site_of(place).catalog_url, create=False)) as catalog:
        return [chunk for pack in catalog.packs() if pack.state == "live" for chunk in catalog.pack_chunks(pack.name)]


def rewritten(store):
    """How many packs are rewritten once what is deleted has been purged."""
    store.gc(grace=0)
    return store.gc(grace=0).rewritten


def resting(place):
    """The packs of chunks that rest on others, from the oldest on."""
    return list(dict.fromkeys(frame.pack for frame in frames(place) if frame.base))


def resting_on(place):
    """The digest of a chunk that others rest on."""
    return next(frame.base for frame in frames(place) if frame.base)


def path_of(place, pack):
    return place / pack_key(pack)


def base_pack(place):
    """The file of the pack that the oldest of those rests on which rest on others."""
    return path_of(place, next(frame.pack for frame in frames(place) if frame.digest == resting_on(place)))


def assert_steps(place, states):
    """These steps are there and exact, nothing is damaged and nothing leaks."""
    with opened(place) as store:
        assert set(store.steps()) == states.keys()
        for step, expected in states.items():
            assert_same(store.checkout(step), expected)
        report = store.verify()
        assert report.ok, report.problems
    assert_held(place)
    assert_nothing_leaked(place)


def states(*steps):
    return {step: state(step) for step in steps}


def disturbed(place, verb, act, run="main"):
    """A store that is disturbed when it is about to do its first operation of a verb."""
    parts = site_of(place).parts()
    return Store(replace(parts, storage=Meanwhile(parts.storage, verb, act)), run)


# writing


def test_each_step_is_exact_and_small(place):
    by_pack: dict[str, int] = {}
    for frame in frames(place):
        by_pack[frame.pack] = by_pack.get(frame.pack, 0) + frame.length
    whole, *deltas = by_pack.values()
    assert whole > 80_000
    assert len(deltas) == 3
    assert max(deltas) < 0.75 * whole
    roots = {frame.digest for frame in frames(place) if not frame.base}
    assert {base for frame in frames(place) for base in frame.bases} <= roots
    assert_steps(place, states(0, 1, 2, 3))


@pytest.mark.parametrize("level", ["none", "fast", "auto", "best"])
def test_levels(tmp_path, level):
    with ckptstore.open(tmp_path / "store", chunk_bytes=CHUNK_BYTES, compression=level) as store:
        for step in range(2):
            store.commit(state(step) | {"zeros": torch.zeros(CHUNK_BYTES)}, step=step)
            assert_same(store.checkout(step), state(step) | {"zeros": torch.zeros(CHUNK_BYTES)})
    codecs = {frame.codec for frame in frames(tmp_path / "store")}
    assert (codecs == {0}) == (level == "none")
    if level != "auto":
        assert bool(resting(tmp_path / "store")) == (level == "best")


@pytest.mark.parametrize("level", ["zstd", "", None, 3])
def test_a_level_that_is_none(tmp_path, level):
    with pytest.raises(InvalidArgument, match="choose one of none, fast, auto, best"):
        ckptstore.open(tmp_path / "store", compression=level)
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize(("moved", "resting_too"), [(0.003, False), (0.001, True)])
def test_a_chunk_rests_on_another_only_where_that_saves_an_eighth(tmp_path, moved, resting_too):
    assert share_that_rests(tmp_path / "store", moved, 100_000, 1 << 20) == resting_too


@pytest.mark.parametrize(
    ("moved", "every", "least", "most"),
    [(0.001, 1, 0.15, 0.35), (0.0002, 1, 0.6, 0.8), (0.000001, 1, 0.7, 0.9), (0.001, 100, 1, 1)],
    ids=["saves little", "saves more", "halves", "nearly nothing"],
)
def test_of_many_chunks_as_many_rest_on_others_as_readers_bear(tmp_path, moved, every, least, most):
    assert least <= share_that_rests(tmp_path / "store", moved, 1_000_000, every=every) <= most


def share_that_rests(place, moved, numbers, chunk_bytes=1 << 16, every=1):
    """Of the second one's chunks, when a tensor is committed twice and one of `every` moves by so much, to 0.02."""
    generator = torch.Generator().manual_seed(0)
    before, change = (torch.randn(numbers, generator=generator) * size for size in (0.02, moved))
    change[torch.arange(numbers) % every != 0] = 0
    with ckptstore.open(place, compression="best", chunk_bytes=chunk_bytes) as store:
        for step, tensor in enumerate([before, before + change]):
            store.commit({"w": tensor}, step=step)
            assert torch.equal(store.checkout(step)["w"], tensor)
    found = frames(place)
    newer = found[len(found) // 2 :]
    return sum(bool(frame.base) for frame in newer) / len(newer)


def test_forks_rest_on_what_they_came_from(place):
    with opened(place) as store:
        for step in range(5, 8):
            store.commit(state(step), step=step, run="fork", parent="main@3" if step == 5 else None)
            assert_same(store.checkout(f"fork@{step}"), state(step))
        for step in range(4):
            store.delete(step)
        store.gc(grace=0)
        for step in range(5, 8):
            assert_same(store.checkout(f"fork@{step}"), state(step))
        assert store.verify().ok
    assert len(resting(place)) == 3
    assert_held(place)
    assert_nothing_leaked(place)


def test_what_has_another_form_rests_on_nothing(place):
    with opened(place) as store:
        other = {"model": {"w": drift(0).double(), "v": drift(0, 1).view(2, -1)}, "new": drift(4)}
        store.commit(other, step=9)
        assert_same(store.checkout(9), other)
    assert not any(frame.base for frame in frames(place) if frame.pack == frames(place)[-1].pack)


def test_a_delta_is_found_by_who_commits_the_same(place):
    with opened(place) as store:
        before = store.stats().stored_bytes
        store.commit(state(2), step=0, run="other")
        assert store.stats().stored_bytes == before
        for step in range(4):
            store.delete(step)
        store.gc(grace=0)
        assert_same(store.checkout("other@0"), state(2))
        assert store.verify().ok
    assert_held(place)
    assert_nothing_leaked(place)


def test_a_damaged_chunk_is_rested_on_by_nothing(place):
    base_pack(place).write_bytes(bytes(base_pack(place).stat().st_size))
    before = len(resting(place))
    with opened(place) as store:
        store.commit(state(4), step=4)
        assert_same(store.checkout(4), state(4))
    assert len(resting(place)) == before


def test_a_store_of_old_gets_no_deltas(tmp_path):
    opened(tmp_path / "store", chunk_bytes=CHUNK_BYTES).close()
    settings = tmp_path / "store" / version.KEY
    plain = msgspec.structs.replace(
        version.decode(settings.read_bytes(), ""), requires_read=(), requires_write=(), requires_gc=()
    )
    settings.write_bytes(version.encode(plain))
    with opened(tmp_path / "store") as store:
        for step in range(3):
            store.commit(state(step), step=step)
    assert resting(tmp_path / "store") == []
    assert_steps(tmp_path / "store", states(0, 1, 2))


def test_a_version_that_knows_no_deltas_refuses(place, monkeypatch):
    monkeypatch.setattr(version, "FEATURES", version.FEATURES - {version.DELTAS})
    for act in (ckptstore.open, ckptstore.rebuild_catalog):
        with pytest.raises(StoreTooNew, match=r"to read .* needs deltas, unknown here: upgrade"):
            act(place)


# reading


def test_parts_are_read(place):
    with opened(place) as store:
        for index in (
            slice(0, 10),
            slice(CHUNK_BYTES // 4 - 3, CHUNK_BYTES // 4 + 3),
            slice(5, None, 1000),
            NUMBERS - 1,
        ):
            assert torch.equal(store.read(2, "model/w", index=index), drift(2)[index])
        live = {"model": {"w": torch.zeros(NUMBERS), "v": torch.zeros(NUMBERS)}}
        store.checkout(3, into=live, paths="model/*")
        assert_same(live, {"model": state(3)["model"]})
        assert {change.path for change in store.diff(2, 3, values=True).changes} == {"model/w", "model/v", "step"}


def test_a_reader_finds_what_moved_meanwhile(place):
    """The pack that others rest on is rewritten and gone when it is about to be read."""
    with opened(place) as store:
        store.commit(state(8, *range(6)), step=8, run="wide")
        store.commit(state(9), step=9, run="wide")
        for step in range(4):
            store.delete(step)
        store.delete("wide@8")

    def rewrite():
        with opened(place) as other:
            assert rewritten(other) > 0

    with disturbed(place, "get_ranges", rewrite, "wide") as store:
        assert_same(store.checkout(9), state(9))


@pytest.mark.parametrize("budget", [5 << 20, 8 << 20])
def test_a_checkout_keeps_to_its_budget(tmp_path, budget):
    numbers, chunk = 1 << 21, 1 << 19
    weights = noise(0, numbers) * 0.02
    with opened(tmp_path / "store", chunk_bytes=chunk) as store:
        for step in range(2):
            store.commit({"w": weights + step * 1e-6}, step=step)
        live = {"w": torch.zeros(numbers)}
        store.checkout(1, into=live, memory_budget_bytes=budget)
        live["w"].zero_()
        assert peak_of(lambda: store.checkout(1, into=live, memory_budget_bytes=budget)) < budget
        assert_same(live, {"w": weights + 1e-6})
        with pytest.raises(BudgetTooSmall):
            store.checkout(1, into=live, memory_budget_bytes=chunk)
    assert resting(tmp_path / "store")


# gc


def test_what_is_rested_on_outlives_its_commit(place):
    with opened(place) as store:
        store.delete(0)
        assert store.gc(grace=0).packs == 0
        store.delete(1)
        store.delete(2)
        assert store.gc(grace=0).packs == 2
    assert_steps(place, states(3))


def test_what_nothing_rests_on_any_more_goes(place):
    old = files(place)
    with opened(place) as store:
        store.commit({"other": noise(77)}, step=10)
        for step in range(4):
            store.delete(step)
        store.gc(grace=0)
        assert store.steps() == [10]
    assert not {name for name in files(place) & old if name.startswith(("packs", "manifests"))}
    assert_steps(place, {10: {"other": noise(77)}})


def test_the_pack_of_what_is_rested_on_is_rewritten(tmp_path):
    place = tmp_path / "store"
    with opened(place, chunk_bytes=CHUNK_BYTES) as store:
        store.commit(state(0, *range(6)), step=0)
        store.commit(state(1), step=1)
        store.delete(0)
        before = store.stats().stored_bytes
        assert rewritten(store) == 1
        assert store.stats().stored_bytes < before / 2
    assert len(resting(place)) == 1
    assert_steps(place, states(1))


def test_deltas_stay_deltas_in_rewritten_packs(tmp_path):
    place = tmp_path / "store"
    with opened(place, chunk_bytes=CHUNK_BYTES) as store:
        store.commit(state(0), step=0)
        store.commit(state(1, *range(6)), step=1)
        store.commit(state(1), step=2)
        store.delete(0)
        store.delete(1)
        before = {frame.digest: (frame.codec, frame.base) for frame in frames(place)}
        assert rewritten(store) == 1
    assert {frame.digest: (frame.codec, frame.base) for frame in frames(place)}.items() < before.items()
    assert len(resting(place)) == 1
    assert_steps(place, {2: state(1)})


def test_two_packs_in_which_a_chunk_rests_on_others_become_one(tmp_path):
    """Two writers of the same state at once, each on top of its own parent; then both packs are mostly waste."""
    place = tmp_path / "store"
    with opened(place, chunk_bytes=CHUNK_BYTES) as store:
        store.commit(state(0), step=0, run="one")
        store.commit(state(5), step=0, run="two")

    def commit():
        with opened(place) as other:
            other.commit(state(6, *range(6)), step=1, run="two")
            other.commit(state(6), step=2, run="two")

    with disturbed(place, "put", commit, "one") as store:
        store.commit(state(6, *range(6, 12)), step=1)
        store.commit(state(6), step=2)
    chunk = [frame for frame in frames(place) if frame.base]
    assert len({(frame.digest, frame.base) for frame in chunk}) == 2 * len({frame.digest for frame in chunk})
    with opened(place) as store:
        for run in ("one", "two"):
            store.delete(f"{run}@1")
        assert rewritten(store) == 2
        assert_held(place)
        for run in ("one", "two"):
            assert_same(store.checkout(f"{run}@2"), state(6))
            store.delete(f"{run}@0")
        store.gc(grace=0)
        assert store.verify().ok
    assert_held(place)
    assert_nothing_leaked(place)


def test_a_delta_that_has_lost_its_base_does_not_stop_gc(place):
    """The pack of a chunk that cannot be decoded any more stays; others are rewritten."""
    with opened(place) as store:
        store.commit(state(4, *range(6)), step=4)
        store.commit(state(4), step=5)
        store.commit({"other": {str(number): noise(number) for number in range(6)}}, step=6)
        store.commit({"other": {"0": noise(0)}}, step=7)
        for step in (4, 6):
            store.delete(step)
    base_pack(place).unlink()
    with opened(place) as store:
        store.repair()
        assert rewritten(store) == 1
        assert_same(store.checkout(7), {"other": {"0": noise(0)}})


# damage


def leaves(*steps):
    return {f"main@{step} model/{name}" for step in steps for name in "wv"}


def test_what_rests_on_a_damaged_chunk_is_reported(place):
    bad = base_pack(place)
    bad.unlink()
    with opened(place) as store:
        problems = store.verify().problems
        assert {problem.object for problem in problems} == {pack_key(bad.stem)}
        assert {leaf for problem in problems for leaf in problem.affected} == leaves(0, 1, 2, 3)
        with pytest.raises(MissingData, match=r"model/[wv]: .*run verify"):
            store.checkout(3)
        with pytest.raises(ckptstore.GcRefused):
            store.gc(grace=0)


def test_a_lost_pack_is_named_by_a_leaf_that_needs_it(place):
    """Though it is read together with others."""
    with opened(place) as store:
        store.commit({"a": noise(1), **state(4), "z": noise(2)}, step=4)
    base_pack(place).unlink()
    with opened(place) as store:
        with pytest.raises(MissingData, match=r"^model/[wv]: .*run verify"):
            store.checkout(4)
        assert set(store.checkout(4, paths=["a", "z"])) == {"a", "z"}


@pytest.mark.parametrize("place_of", [lambda frame: 100, lambda frame: frame.length - 1], ids=["code", "mantissa"])
def test_a_flipped_bit_of_what_is_rested_on(place, place_of):
    bad, frame = base_pack(place), frames(place)[0]
    data = bytearray(bad.read_bytes())
    data[frame.offset + place_of(frame)] ^= 1
    bad.write_bytes(data)
    with opened(place) as store:
        with pytest.raises(CorruptData, match=f"a chunk in pack {bad.stem} at offset {frame.offset} is damaged"):
            store.checkout(3)
        problems = store.verify().problems
        assert {problem.object for problem in problems} == {pack_key(bad.stem)}
        (name,) = {leaf.split()[1] for problem in problems for leaf in problem.affected}
        assert {leaf for problem in problems for leaf in problem.affected} == {
            f"main@{step} {name}" for step in range(4)
        }
        with pytest.warns(UserWarning, match=f"main@2.*1 leaf.*{name}"):
            left = store.checkout(2, skip_damaged=True)
        expected = state(2)
        del expected["model"][name.split("/")[1]]
        assert_same(left, expected)
        plan = store.plan_repair()
        assert (plan.packs, set(plan.lost)) == ((bad.stem,), {f"main@{step} {name}" for step in range(4)})
        assert plan.execute().lost == plan.lost
        assert {leaf for problem in store.verify().problems for leaf in problem.affected} == set(plan.lost)


def test_a_copy_of_the_store_brings_back_what_was_rested_on(place, tmp_path):
    shutil.copytree(place, tmp_path / "copy")
    before = resting(place)
    base_pack(place).unlink()
    with opened(place) as store:
        assert store.repair().lost
        with opened(tmp_path / "copy") as source:
            assert store.repair(source).lost == ()
    assert resting(place) == before
    assert_steps(place, states(0, 1, 2, 3))


@pytest.mark.parametrize("position", [3, -20, -100])
def test_damage_beside_the_payloads(place, position):
    """Of what is rested on, and of what rests on it."""
    for path in (base_pack(place), path_of(place, resting(place)[0])):
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)
    with opened(place) as store:
        assert len(store.plan_repair().packs) == 2
        assert store.repair().lost == ()
    assert_steps(place, states(0, 1, 2, 3))


def test_the_next_commit_of_what_was_rested_on_heals(place):
    base_pack(place).unlink()
    with opened(place) as store:
        assert set(store.repair().lost) == leaves(0, 1, 2, 3)
        store.commit(state(0), step=10)
        assert store.plan_repair().lost == ()
        assert site_of(place).parts().catalog.lost() == {}
        store.delete(10)
    assert_steps(place, states(0, 1, 2, 3))


def test_the_next_commit_of_what_rests_heals_its_own(place):
    base_pack(place).unlink()
    with opened(place) as store:
        store.repair()
        before = resting(place)
        store.commit(state(2), step=10)
        store.delete(10)
        store.gc(grace=0)
        assert_same(store.checkout(2), state(2))
        store.commit(state(2), step=10)
        store.commit(state(11), step=11)
        assert len(resting(place)) == len(before) + 1
        store.delete(10)
        assert_same(store.checkout(11), state(11))
        problems = store.verify().problems
        assert {leaf for problem in problems for leaf in problem.affected} == leaves(0, 1, 3)
        for step in (0, 1, 3):
            store.delete(step)
        store.gc(grace=0)
        assert store.verify().ok
    (place / "catalog.sqlite").unlink()
    assert {left.object.split("/")[0] for left in ckptstore.rebuild_catalog(place).left_out} <= {"packs"}
    with opened(place) as store:
        assert_same(store.checkout(2), state(2))
        assert_same(store.checkout(11), state(11))
        assert store.verify().ok


def test_what_healed_chunks_rested_on_is_not_lost_any_more(place):
    with opened(place) as store:
        store.delete(0)
        store.gc(grace=0)
        base_pack(place).unlink()
        assert set(store.repair().lost) == leaves(1, 2, 3)
        for step in (1, 2):
            store.commit(state(step), step=10 + step)
        store.repair()
        assert site_of(place).parts().catalog.lost()
        store.commit(state(3), step=13)
        assert store.repair().lost == ()
        store.delete(*store.steps()[3:])
        store.gc(grace=0)
        parts = site_of(place).parts()
        assert parts.catalog.lost() == {}
        assert {pack.state for pack in parts.catalog.packs()} == {"live"}
    assert_steps(place, states(1, 2, 3))


def test_what_was_lost_is_stored_whole(place):
    """Though it could rest on what is there, since commits that lost it need not have that."""
    path_of(place, resting(place)[1]).unlink()
    with opened(place) as store:
        assert set(store.repair().lost) == leaves(2)
        store.commit(state(2), step=10)
        store.delete(10)
        store.gc(grace=0)
    assert_steps(place, states(0, 1, 2, 3))


def test_a_chunk_that_is_stored_while_it_is_lost_heals_nobody_as_a_delta(place):
    """Between a writer's look and its commit another commits the same whole, and loses it."""

    def lose():
        with ckptstore.open(place, compression="fast") as other:
            other.commit(state(6), step=0, run="whole")
        path_of(place, frames(place)[-1].pack).unlink()
        with opened(place) as other:
            assert other.repair().lost

    with disturbed(place, "put", lose) as store:
        store.commit(state(6), step=6)
        assert_same(store.checkout(6), state(6))
    assert_held(place)
    with opened(place) as store:
        assert store.repair().lost == ()
        assert_same(store.checkout("whole@0"), state(6))
    assert_held(place)


def test_what_is_whole_elsewhere_is_held_by_whom_it_rested_for(place):
    """Two writers of the same at once, one of them of whole chunks; then what the other one's rest on is gone."""

    def commit():
        with ckptstore.open(place, compression="fast") as other:
            other.commit(state(6), step=0, run="whole")

    with disturbed(place, "put", commit) as store:
        store.commit(state(6), step=6)
    base_pack(place).unlink()
    with opened(place) as store:
        assert set(store.repair().lost) == leaves(0, 1, 2, 3)
        assert_held(place)
        store.delete("whole@0")
        for _ in range(2):
            store.gc(grace=0)
            assert_same(store.checkout(6), state(6))
    assert_held(place)


# rebuilding


def test_the_catalog_is_rebuilt(place):
    (place / "catalog.sqlite").unlink()
    report = ckptstore.rebuild_catalog(place)
    assert (report.commits, report.packs, report.left_out) == (4, 4, ())
    with opened(place) as store:
        store.delete(0)
        store.gc(grace=0)
        store.commit(state(4), step=4)
    assert len(resting(place)) == 4
    assert_steps(place, states(1, 2, 3, 4))


def test_the_catalog_is_rebuilt_without_a_pack(place):
    with opened(place) as store:
        store.commit({"other": noise(77)}, step=10)
    lost = path_of(place, resting(place)[1])
    lost.unlink()
    (place / "catalog.sqlite").unlink()
    report = ckptstore.rebuild_catalog(place)
    assert report.commits == 4
    (left,) = report.left_out
    assert "main@2: " in left.reason
    with opened(place) as store:
        assert store.steps() == [0, 1, 3, 10]
        assert_same(store.checkout(3), state(3))
    assert_held(place)
    bad = base_pack(place)
    bad.unlink()
    (place / "catalog.sqlite").unlink()
    assert ckptstore.rebuild_catalog(place).commits == 1


def test_an_older_catalog_collects_nothing_of_a_commit_that_became_whole(tmp_path):
    """Its document names what its chunks rested on, which is gone; and it needs what that catalog would free."""
    place = tmp_path / "store"
    with opened(place, chunk_bytes=CHUNK_BYTES) as store:
        store.commit({"extra": noise(5005)}, step=9)
    shutil.copy(place / "catalog.sqlite", tmp_path / "older.sqlite")
    with opened(place) as store:
        store.commit(state(0), step=0, run="base")
        store.commit(state(4, 5), step=10, parent="base@0")
        store.delete("base@0")
        store.gc(grace=0)
    path_of(place, next(frame.pack for frame in frames(place) if frame.digest == resting_on(place))).unlink()
    with opened(place) as store:
        assert store.repair().lost
        store.commit(state(4, 5), step=10)
        assert_same(store.checkout(10), state(4, 5))
    for path in place.glob("catalog.sqlite*"):
        path.unlink()
    shutil.copy(tmp_path / "older.sqlite", place / "catalog.sqlite")
    before = files(place)
    with opened(place) as store:
        store.delete(9)
        for sweep in (False, True):
            with pytest.raises(GcRefused, match=r"000000000010.* is a whole commit that the catalog"):
                store.gc(grace=0, sweep=sweep)
    assert files(place) == before
    (place / "catalog.sqlite").unlink()
    assert ckptstore.rebuild_catalog(place).commits == 2
    with opened(place) as store:
        assert_same(store.checkout(10), state(4, 5))
        assert store.verify().ok


# places


def lifecycle(site: Site, **settings: Any):
    """Commit, drop what is rested on, rewrite, fork."""
    with opened(site, chunk_bytes=CHUNK_BYTES, **settings) as store:
        store.commit(state(0, *range(6)), step=0)
        for step in range(1, 4):
            store.commit(state(step), step=step)
        store.delete(0)
        assert rewritten(store) == 1
        store.delete(1)
        store.gc(grace=0)
        store.commit(state(4), step=4, run="fork", parent="main@3")
        assert_same(store.checkout("fork@4"), state(4))
        assert_same(store.read(3, "model/w", index=slice(5, 9)), drift(3)[5:9].clone())
        store.delete("fork@4")
    assert len(resting(site)) == 3
    assert_steps(site, states(2, 3))


def test_every_place(sites):
    lifecycle(sites())


def test_an_encrypted_store(tmp_path, monkeypatch):
    monkeypatch.setenv("CKPTSTORE_KEY", "correct horse battery staple")
    place = tmp_path / "store"
    lifecycle(site_of(place), encrypt=True)
    base_pack(place).unlink()
    with opened(place) as store:
        assert {leaf.split()[0] for leaf in store.repair().lost} == {"main@2", "main@3"}
        store.commit(state(2), step=10)
        assert_same(store.checkout(2), state(2))
