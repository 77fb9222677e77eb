from __future__ import annotations

import io
import json
import os
import runpy
import shutil
import sys
from fractions import Fraction
from pathlib import Path

import pytest
import torch

import ckptstore
from ckptstore.errors import CkptStoreError, FormatError, StateMismatch
from ckptstore.integrations.torchsnapshot import import_torchsnapshot
from ckptstore.testing.equality import assert_same

HERE = Path(__file__).parent / "snapshots"
STATES = runpy.run_path(str(HERE / "states.py"))
LARGE = "0/a%2Fb %25/large"


def one_rank():
    """A snapshot does not know the order of dims in memory."""
    state = STATES["one_rank"]()
    state["a/b %"]["turned"] = state["a/b %"]["turned"].contiguous()
    return state


def of_ranks():
    first, second = STATES["of_rank"](0), STATES["of_rank"](1)
    shared = {"same": first["same"], "table": {"w": STATES["sharded"](), "empty": {}}}
    return shared | {0: {"own": first["own"]}, 1: {"own": second["own"]}}


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "torchsnapshot", None)
    with ckptstore.open("store", chunk_bytes=4096) as store:
        yield store


@pytest.fixture
def one(tmp_path):
    return shutil.copytree(HERE / "one", tmp_path / "one")


@pytest.fixture
def ranks(tmp_path):
    return shutil.copytree(HERE / "ranks", tmp_path / "ranks")


def changed(folder, change):
    """The metadata again, after a change of the manifest."""
    file = folder / ".snapshot_metadata"
    document = json.loads(file.read_text())
    change(document["manifest"])
    file.write_text(json.dumps(document))


def refused(store, folder, match):
    with pytest.raises(FormatError, match=match):
        import_torchsnapshot(store, folder, step=1)
    assert store.steps() == [] and not store.stats().packs


def test_a_snapshot_of_one_rank(store, one):
    made = import_torchsnapshot(store, one, step=1)
    state = store.checkout(1)
    assert_same({name: state[name] for name in ("model", "a/b %")}, one_rank())
    assert store.commit(state, step=1).id == made.id


def test_a_snapshot_of_two_ranks(store, ranks):
    import_torchsnapshot(store, ranks, step=1)
    assert_same(store.checkout(1), of_ranks())
    assert store.read(1, "1/own/rank") == 1
    assert store.read(1, "table/w", index=slice(3, 5)).tolist() == [[12.0, 13, 14, 15], [16, 17, 18, 19]]


def test_a_snapshot_of_two_ranks_is_what_two_ranks_would_commit(store, ranks, crew):
    import_torchsnapshot(store, ranks, step=1)
    crew.do("commit_snapshotted", 2, place=store.url)
    assert store.manifest(1).manifest == store.manifest(2).manifest


def test_two_ranks_go_on_from_their_snapshot(store, ranks, crew):
    import_torchsnapshot(store, ranks, step=1)
    crew.do("check_out_snapshotted", 2, place=store.url)


def test_another_count_of_ranks_is_told_what_was_each_ones_own(store, ranks):
    import_torchsnapshot(store, ranks, step=1)
    with pytest.raises(StateMismatch, match="own/rank: each of 2 ranks had its own, and there are 1 now"):
        store.checkout(1, into={"own": STATES["of_rank"](0)["own"]})


def test_plain_values_that_ranks_had_alike_are_there_once(store, ranks):
    changed(ranks, lambda manifest: manifest["1/own/rank"].update(serialized_value="0"))
    import_torchsnapshot(store, ranks, step=1)
    assert store.read(1, "own/rank") == 0 and "rank" not in store.read(1, "1/own")


def test_ranks_beneath_a_name(store, ranks):
    import_torchsnapshot(store, ranks, step=1, name="old")
    assert store.read(1, "1/old/own/mixed/1") == 1 and store.read(1, "old/same/step") == 7


def test_a_rank_that_has_nothing_for_itself(store, ranks):
    changed(ranks, lambda manifest: [manifest.pop(path) for path in list(manifest) if path.startswith("1/own")])
    import_torchsnapshot(store, ranks, step=1)
    assert_same(store.checkout(1), {**of_ranks(), 1: {}})


def test_beneath_a_name(store, one):
    import_torchsnapshot(store, one, step=1, name="old")
    assert store.read(1, "old/a%2Fb %25/scalar").item() == 3.5


def test_snapshots_taken_now(tmp_path):
    pytest.importorskip("torchsnapshot")
    runpy.run_path(str(HERE / "make.py"))["make_one"](tmp_path / "taken")
    with ckptstore.open(tmp_path / "store") as store:
        import_torchsnapshot(store, tmp_path / "taken", step=1)
        state = store.checkout(1)
        assert_same({name: state[name] for name in ("model", "a/b %")}, one_rank())


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about quantised tensors
def test_quantized_tensors(store, one):
    quantized = torch.quantize_per_tensor(torch.arange(4.0), 0.5, 1, torch.qint8)
    torch.save(quantized, one / "q")
    entry = {"type": "Tensor", "location": "q", "serializer": "torch_save", "dtype": "torch.qint8", "shape": [4]}
    changed(one, lambda manifest: manifest.update({LARGE: entry | {"replicated": False, "byte_range": None}}))
    import_torchsnapshot(store, one, step=1)
    assert_same(store.checkout(1)["a/b %"]["large"], quantized)


# what is no whole snapshot


def test_no_snapshot(store, one):
    (one / ".snapshot_metadata").rename(one / "metadata")
    refused(store, one, r"one has no file \.snapshot_metadata")


def test_every_file_is_needed_whole(store, one, ranks):
    for folder in (one, ranks):
        for file in sorted(path for path in folder.rglob("*") if path.is_file()):
            data = file.read_bytes()
            file.unlink()
            refused(store, folder, "is missing|no file")
            for size in (0, len(data) // 2, len(data) - 1):
                file.write_bytes(data[:size])
                refused(store, folder, "cut off|no whole|no metadata|cut short|no torch")
            file.write_bytes(data)
    import_torchsnapshot(store, one, step=1)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("version: 0.0.3\nworld_size: 1\nmanifest: {}\n", "YAML"),
        ('{"version": "1.0.0", "world_size": 1, "manifest": {}}', "version 1.0.0"),
        ('{"version": "0.1.0", "world_size": 1, "manifest": {"1/a": {"type": "list"}}}', "rank 1"),
        ('{"version": "0.1.0", "world_size": 1, "manifest": {"0/a": {"type": "DTensor"}}}', "DTensor"),
        ('{"version": "0.1.0", "world_size": 1, "manifest": {"0/a/b": {"type": "list"}}}', "in no container"),
    ],
)
def test_metadata_that_is_not_known(store, one, text, match):
    (one / ".snapshot_metadata").write_text(text)
    refused(store, one, match)


def test_random_damage_never_commits_in_part(store, one):
    rng = torch.Generator().manual_seed(0)
    file = one / ".snapshot_metadata"
    data = bytearray(file.read_bytes())
    for _ in range(150):
        place, value = (int(torch.randint(most, (), generator=rng)) for most in (len(data), 256))
        file.write_bytes(bytes(data[:place]) + bytes([value]) + bytes(data[place + 1 :]))
        before = store.steps()
        try:
            import_torchsnapshot(store, one, step=len(before))
        except CkptStoreError:
            assert store.steps() == before
    assert not store.verify().problems


def chunks(manifest):
    return manifest[LARGE]["chunks"]


CHANGES = {
    "missing piece": (lambda found: chunks(found).pop(), "of 40 elements"),
    "piece twice": (lambda found: chunks(found).append(chunks(found)[0]), "overlaps"),
    "piece outside": (lambda found: chunks(found)[0].update(offsets=[19, 1]), "beyond"),
    "other dims": (lambda found: chunks(found)[0].update(offsets=[0]), "dims"),
    "other sizes": (lambda found: chunks(found)[0].update(sizes=[1, 2]), "should be"),
    "other dtype": (lambda found: found[LARGE].update(dtype="torch.int32"), "should be"),
    "unknown dtype": (lambda found: found[LARGE].update(dtype="torch.load"), "no dtype"),
    "short range": (lambda found: chunks(found)[0]["tensor"].update(byte_range=[0, 4]), "are no torch.float32"),
    "range backwards": (lambda found: chunks(found)[0]["tensor"].update(byte_range=[9, 4]), "cut off"),
    "serializer": (lambda found: chunks(found)[0]["tensor"].update(serializer="dill"), "dill"),
    "other folder": (lambda found: chunks(found)[0]["tensor"].update(location="../other"), "not in it"),
    "no int": (lambda found: found["0/a%2Fb %25/plain/int"].update(serialized_value="x"), "no value"),
    "no float": (lambda found: found["0/a%2Fb %25/plain/float"].update(serialized_value="!"), "no value"),
    "no bool": (lambda found: found["0/a%2Fb %25/flags/0"].update(serialized_value="yes"), "no value"),
    "no container": (lambda found: found.pop("0/a%2Fb %25/deep/0"), "in no container"),
    "negative": (lambda found: chunks(found)[0].update(offsets=[-1, 0]), ">= 0"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_contradicts_itself(store, one, name):
    change, match = CHANGES[name]
    changed(one, change)
    (one.parent / "other").write_bytes(bytes(1000))
    refused(store, one, match)


def test_a_list_that_lacks_an_item(store, one):
    changed(one, lambda manifest: manifest.pop("0/a%2Fb %25/flags/1"))
    refused(store, one, r"flags' of the snapshot has items at \[0, 2, 3\] alone")


def test_a_shard_that_is_missing(store, ranks):
    changed(ranks, lambda manifest: manifest["0/table/w"]["shards"].clear())
    refused(store, ranks, "12 of 28 elements")


# pickles


class Mischief:
    def __reduce__(self):
        return os.mkdir, ("made",)


def test_objects_run_no_code(store, one):
    torch.save(Mischief(), one / "0" / "a%2Fb %25" / "flags" / "3")
    torch.save([Mischief()], one / "0" / "model" / "w.complex64")
    refused(store, one, "mkdir.*allow pickles")
    assert not Path("made").exists()


def test_pickles_that_are_allowed(store, one):
    torch.save([Fraction(1, 2), io.StringIO], one / "0" / "a%2Fb %25" / "flags" / "3")
    refused(store, one, r"fractions\.Fraction|StringIO")
    import_torchsnapshot(store, one, step=1, allow_pickle=True)
    assert store.checkout(1, allow_pickle=True)["a/b %"]["flags"][3] == [Fraction(1, 2), io.StringIO]
