from __future__ import annotations

import io
import os
import pickle
import resource
import runpy
import shutil
import zipfile
from collections import OrderedDict
from datetime import date
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties as OldProperties
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter, SerializationFormat
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    Metadata,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

import ckptstore
from ckptstore.errors import (
    CkptStoreError,
    Conflict,
    CorruptData,
    FormatError,
    StateError,
    StepExists,
    StorageError,
)
from ckptstore.format.manifest import Container, Entry, Manifest, ValueEntry
from ckptstore.integrations.dcp import StoreWriter
from ckptstore.integrations.dcp_files import export_dcp, import_dcp, packed, saving
from ckptstore.integrations.torch_save import import_torch
from ckptstore.operations.loading.renumbering import renumbered
from ckptstore.state.paths import segment
from ckptstore.testing.equality import assert_same
from ckptstore.testing.states import STATES

SHARDED = Path(__file__).parent / "sharded"
STATE = runpy.run_path(str(SHARDED / "make.py"))["state"]
DTYPES = [
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32),
    *(torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
]


def every_dtype():
    plain = {dtype: torch.arange(6 * dtype.itemsize, dtype=torch.uint8) for dtype in DTYPES}
    plain[torch.bool] %= 2
    return {str(dtype): values.view(dtype).view(2, 3) for dtype, values in plain.items()}


def training():
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.BatchNorm1d(30))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 40)).sum().backward()
    optimizer.step()
    return {"model": dict(model.state_dict()), "optim": dict(optimizer.state_dict()), "epoch": 3, "name": "né"}


def save(state, folder, **options):
    dcp_save(state, storage_writer=FileSystemWriter(folder, **options), no_dist=True)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ckptstore.open("store", chunk_bytes=4096) as store:
        yield store


@pytest.fixture
def sharded(tmp_path):
    return shutil.copytree(SHARDED / "ranks", tmp_path / "ranks")


def changed(folder, change):
    """The metadata again, after a change."""
    file = folder / ".metadata"
    metadata = pickle.loads(file.read_bytes())
    change(metadata)
    file.write_bytes(pickle.dumps(metadata))


def refused(store, folder, match):
    with pytest.raises(FormatError, match=match):
        import_dcp(store, folder, step=1)
    assert store.steps() == [] and not store.stats().packs


# import


@pytest.mark.parametrize("options", [{}, {"single_file_per_rank": False}, {"thread_count": 3}], ids=str)
def test_a_checkpoint_of_one_process(store, options):
    state = {
        "all": every_dtype(),
        "forms": {"turned": torch.arange(6.0).view(2, 3).t(), "none": torch.ones(0, 3), "one": torch.tensor(2)},
        "large": torch.arange(5000).view(50, 100),
        "list": [{"x": torch.ones(2)}, torch.zeros(1), "text"],
        "plain": {"date": date(2026, 1, 2), "tuple": (1, "a"), "none": None, "a.b/c": {"d": 1.5}},
    }
    save(state, "saved", **options)
    import_dcp(store, "saved", step=1)
    assert_same(store.checkout(1), state)


def test_it_is_the_commit_that_the_state_makes(store):
    state = training()
    save(state, "saved")
    made = import_dcp(store, "saved", step=1)
    state["optim"]["state"] = {str(key): value for key, value in state["optim"]["state"].items()}
    assert store.commit(state, step=1).id == made.id
    assert_same(store.checkout(1), state)


def test_a_checkpoint_of_four_ranks(store, sharded):
    made = import_dcp(store, sharded, step=1)
    assert_same(store.checkout(1), STATE())
    assert store.commit(STATE(), step=1).id == made.id


def test_a_tensor_is_read_chunk_by_chunk(store, boxes):
    save({"w": torch.arange(1 << 16, dtype=torch.int64)}, "saved")
    import_dcp(store, "saved", step=1)
    assert len(boxes) == 128 and max(boxes) == 4096


def test_without_names_of_a_planner(store):
    state = {"a.b": torch.ones(3), "c": torch.zeros(2)}
    dcp_save(
        state,
        storage_writer=FileSystemWriter("saved"),
        planner=DefaultSavePlanner(flatten_state_dict=False),
        no_dist=True,
    )
    import_dcp(store, "saved", step=1, name="model")
    assert_same(store.checkout(1), {"model": state})


def test_metadata_of_an_older_python(store, monkeypatch):
    monkeypatch.setattr(_MEM_FORMAT_ENCODING, "__reduce_ex__", lambda self, _: (getattr, (type(self), self.name)))
    dcp_save({"a": torch.ones(3)}, storage_writer=FileSystemWriter("saved"), no_dist=True)
    assert b"getattr" in Path("saved", ".metadata").read_bytes()
    import_dcp(store, "saved", step=1, name="model")
    assert_same(store.checkout(1), {"model": {"a": torch.ones(3)}})


def test_metadata_of_an_older_torch(store, sharded):
    def age(metadata):
        metadata.version = metadata.storage_meta = None
        for leaf in metadata.state_dict_metadata.values():
            if isinstance(leaf, TensorStorageMetadata):
                leaf.properties = OldProperties(leaf.properties.dtype)  # type: ignore[assignment]

    changed(sharded, age)
    import_dcp(store, sharded, step=1)
    assert_same(store.checkout(1), STATE())


def test_a_piece_that_several_ranks_named(store, sharded):
    changed(sharded, lambda metadata: chunks_of(metadata, "model.rows").extend(chunks_of(metadata, "model.rows")))
    import_dcp(store, sharded, step=1)
    assert_same(store.checkout(1), STATE())


def test_files_may_be_links(store, sharded):
    Path("links").mkdir()
    for file in sharded.iterdir():
        Path("links", file.name).symlink_to(file)
    import_dcp(store, "links", step=1)
    assert_same(store.checkout(1), STATE())


def test_what_is_lazily_conjugated(store):
    state = {"w": torch.arange(6.0).view(2, 3).to(torch.complex64).mul(1j).conj()}
    save(state, "saved")
    import_dcp(store, "saved", step=1)
    assert store.checkout(1)["w"].equal(state["w"].resolve_conj())


def test_the_same_again_is_success(store, sharded):
    made = import_dcp(store, sharded, step=1)
    assert import_dcp(store, sharded, step=1).id == made.id
    save({"w": torch.ones(2)}, "other")
    with pytest.raises(StepExists):
        import_dcp(store, "other", step=1)


# what is no whole checkpoint


def test_no_checkpoint(store, sharded):
    (sharded / ".metadata").rename(sharded / "metadata")
    refused(store, sharded, r"ranks has no file \.metadata")
    refused(store, sharded / "metadata", r"has no file \.metadata")


def test_what_ranks_saved_each_for_itself(store, sharded):
    (sharded / ".metadata").rename(sharded / "__0.metadata")
    refused(store, sharded, r"use_collectives=False.*__0\.metadata.*dcp\.load.*save it again without")


def test_every_file_is_needed_whole(store, sharded):
    for file in sorted(sharded.iterdir()):
        data = file.read_bytes()
        file.unlink()
        refused(store, sharded, "is missing|no file")
        for size in (0, len(data) // 2, len(data) - 1):
            file.write_bytes(data[:size])
            refused(store, sharded, "cut off|no whole")
        file.write_bytes(data)
    import_dcp(store, sharded, step=1)


def chunks_of(metadata, name):
    found = metadata.state_dict_metadata[name]
    assert isinstance(found, TensorStorageMetadata)
    return found.chunks


def shrink(metadata):
    metadata.state_dict_metadata["model.blocks"].size = torch.Size([7, 4, 3])


def enlarge(metadata):
    metadata.state_dict_metadata["model.blocks"].size = torch.Size([7, 5, 4])


def move(metadata):
    one, other = chunks_of(metadata, "model.rows")
    one.offsets, other.offsets = torch.Size([0, 0]), torch.Size([3, 0])
    storage = metadata.storage_data
    for index in [index for index in storage if index.fqn == "model.rows"]:
        storage[type(index)(index.fqn, [3, 0] if index.offset[0] else [0, 0])] = storage[index]


def forget_index(metadata):
    metadata.storage_data = {index: it for index, it in metadata.storage_data.items() if index.fqn != "model.few"}


def forget_leaf(metadata):
    del metadata.state_dict_metadata["model.few"]


def other_version(metadata):
    metadata.version = "2.0"


def leave_folder(metadata):
    for info in metadata.storage_data.values():
        info.relative_path = "../ranks.distcp"


def transformed(metadata):
    for info in metadata.storage_data.values():
        info.transform_descriptors = ["zstd"]


def other_dtype(metadata):
    metadata.state_dict_metadata["model.few"].properties.dtype = torch.float32


def beneath(metadata):
    metadata.planner_data["model.few"] = ("model", "rows", "few")


def far_item(metadata):
    metadata.planner_data["optim.groups.0.lr"] = ("optim", "groups", 1 << 40, "lr")


def no_numbers(metadata):
    chunks_of(metadata, "model.few")[0].sizes = ("a",)


CHANGES = {
    shrink: "reaches beyond",
    enlarge: "84 of 140|105 of 140",
    move: "overlaps|should be",
    forget_index: r"model\.few.*nothing tells",
    forget_leaf: r"model\.few.*not written",
    other_version: "version",
    leave_folder: "not in it",
    transformed: "zstd",
    other_dtype: "float64 of .*should be",
    beneath: "beneath",
    far_item: "list",
    no_numbers: "no whole metadata",
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_what_contradicts_itself(store, sharded, change):
    changed(sharded, change)
    (sharded.parent / "ranks.distcp").write_bytes(b"x" * 100000)
    refused(store, sharded, CHANGES[change])


# pickles


class Mischief:
    def __reduce__(self):
        return os.mkdir, ("made",)


def test_metadata_runs_no_code(store, sharded):
    hostile = [
        pickle.dumps(Metadata({}, planner_data=Mischief())),
        pickle.dumps(Metadata({}, storage_data=[Mischief()])),
        pickle.dumps(Mischief()),
        b"cos\nsystem\n(S'mkdir made'\ntR.",
        b"ctorch.serialization\nos.mkdir\n(S'made'\ntR.",
        b"ctorch\nload\n(S'.metadata'\ntR.",
    ]
    for data in hostile:
        (sharded / ".metadata").write_bytes(data)
        refused(store, sharded, "run any code|no whole")
    assert not Path("made").exists()


def test_what_the_process_allowed_stays_allowed(store, sharded):
    with torch.serialization.safe_globals([date]):
        import_dcp(store, sharded, step=1)
        assert date in torch.serialization.get_safe_globals()


def test_metadata_changes_no_class(store, sharded):
    """A pickle may set attributes of what it names."""
    (sharded / ".metadata").write_bytes(
        b"ctorch.distributed.checkpoint.metadata\nStorageMeta\n(N(S'__doc__'\nS'spoilt'\ndtb."
    )
    refused(store, sharded, "version|no whole")
    assert StorageMeta.__doc__ != "spoilt"


def test_values_that_torch_pickles_by_a_call(store):
    save({"a": b"", "b": np.zeros((0, 3)), "c": io.BytesIO(b"x"), "w": torch.ones(2)}, "saved")
    torch.save({"a": b"", "b": np.zeros((0, 3)), "c": io.BytesIO(b"x"), "w": torch.ones(2)}, "saved.pt")
    import_dcp(store, "saved", step=1)
    import_torch(store, "saved.pt", step=2)
    for step in (1, 2):
        state = store.checkout(step)
        assert state["a"] == b"" and state["b"].shape == (0, 3) and state["c"].getvalue() == b"x"


def test_values_run_no_code(store):
    save({"a": {"b": Mischief()}}, "saved")
    refused(store, "saved", r"'a\.b'.*mkdir.*allow pickles")
    assert not Path("made").exists()


def test_pickles_that_are_allowed(store):
    save({"a": Fraction(1, 2), "b": {"c": io.StringIO}, "w": torch.ones(2)}, "saved")
    refused(store, "saved", r"fractions\.Fraction|StringIO")
    import_dcp(store, "saved", step=1, allow_pickle=True)
    state = store.checkout(1, allow_pickle=True)
    assert state["a"] == Fraction(1, 2) and state["b"]["c"] is io.StringIO


def test_arrays_of_objects_are_not_taken_for_damage(store):
    """Torch has another message for their dtype than for what it does not know at all."""
    save({"a": np.array([1, "x"], dtype=object), "w": torch.ones(2)}, "saved")
    refused(store, "saved", "'a', holds a numpy.*Object.*allow pickles")
    with pytest.raises(ckptstore.UnsupportedLeaf, match="'a': a numpy array"):
        import_dcp(store, "saved", step=1, allow_pickle=True)


def test_random_damage_never_commits_in_part(store, sharded):
    rng = torch.Generator().manual_seed(0)
    file = sharded / ".metadata"
    data = bytearray(file.read_bytes())
    for _ in range(150):
        place = int(torch.randint(len(data), (), generator=rng))
        spoilt = bytes(data[:place]) + bytes([data[place] ^ (1 << place % 8)]) + bytes(data[place + 1 :])
        file.write_bytes(spoilt)
        before = store.steps()
        try:
            import_dcp(store, sharded, step=len(before))
        except CkptStoreError:
            assert store.steps() == before
    assert not store.verify().problems


# export


def test_export(store):
    state = {"all": every_dtype(), "turned": torch.arange(6.0).view(2, 3).t(), "plain": [1, {"a": None}], **training()}
    store.commit(state, step=1)
    export_dcp(store, 1, "out")
    target = {
        "all": {name: torch.empty_like(tensor) for name, tensor in state["all"].items()},
        "turned": torch.zeros(3, 2),
        "model": {name: torch.zeros_like(tensor) for name, tensor in state["model"].items()},
        "epoch": 0,
        "name": "",
        "plain": [1, {"a": 5}],
    }
    dcp_load(target, storage_reader=FileSystemReader("out"), no_dist=True)
    wanted = {name: state[name] for name in target}
    assert_same(target, wanted | {"turned": state["turned"].contiguous()})


def files_of(folder):
    """What is in a checkpoint's files, and what DCP says of it; None when there is none."""
    if not folder.exists():
        return None
    metadata = FileSystemReader(folder).read_metadata()
    data = {file.name: file.read_bytes() for file in folder.glob("*.distcp")}
    return metadata.state_dict_metadata, metadata.planner_data, metadata.storage_data, data


def saved_or_not(save, *arguments):
    try:
        save(*arguments)
    except (CheckpointException, StateError) as error:
        return error


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about sparse and quantised tensors
@settings(max_examples=150, suppress_health_check=list(HealthCheck), deadline=None)
@given(STATES)
def test_an_export_is_what_dcp_saves_of_a_checkout(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("files")
    with ckptstore.open(folder / "store", chunk_bytes=4096) as store:
        store.commit(state | {"last": 1, "more": [torch.ones(2, 3).t(), (torch.ones(300),) * 2]}, step=1)
        refused = saved_or_not(save, store.checkout(1), folder / "wanted")
        assert (saved_or_not(export_dcp, store, 1, folder / "out") is None) == (refused is None)
    assert refused or files_of(folder / "out") == files_of(folder / "wanted")


def test_an_export_of_several_files(store, monkeypatch):
    monkeypatch.setattr(saving, "_FILE_BYTES", 5000)
    weights = [torch.arange(count * 1.0) for count in (10, 2000, 0, 1200, 3)]
    state = {"w": weights, "pair": (torch.ones(900), 5), "n": 7}
    store.commit(state, step=1)
    export_dcp(store, 1, "out")
    assert sorted(file.name for file in Path("out").iterdir()) == [".metadata", "__0_0.distcp", "__1_0.distcp"]
    target = {"w": [torch.zeros_like(tensor) for tensor in weights], "pair": None, "n": 0}
    dcp_load(target, storage_reader=FileSystemReader("out"), no_dist=True)
    assert_same(target, state)
    import_dcp(store, "out", step=2)
    assert_same(store.checkout(2), state)


def test_what_ends_an_export_is_reported_as_it_is(store, monkeypatch):
    store.commit({"w": torch.arange(5000.0)}, step=1)
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(torch, "save", lambda *_, **__: _raise(KeyboardInterrupt()))
        export_dcp(store, 1, "out")
    with monkeypatch.context() as patched, pytest.raises(StorageError, match="No space"):
        patched.setattr(torch, "save", lambda *_, **__: _raise(OSError(28, "No space left on device")))
        export_dcp(store, 1, "out")
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(torch, "save", _interrupted_in_a_file)
        export_dcp(store, 1, "out")
    (pack,) = Path("store").rglob("*.pack")
    pack.chmod(0o600)
    pack.write_bytes(bytes(pack.stat().st_size))
    with pytest.raises(CorruptData, match=r"w: .*damaged"):
        export_dcp(store, 1, "out")
    assert os.listdir() == ["store"]


def test_what_progress_raises_ends_an_export_as_it_is(store):
    store.commit({"w": torch.arange(5000.0)}, step=1)
    error = BrokenPipeError("nobody reads it")
    with pytest.raises(BrokenPipeError) as caught:
        export_dcp(store, 1, "out", progress=lambda _, done, __: _raise(error) if done else None)
    assert caught.value is error


@pytest.mark.parametrize("handled", [KeyboardInterrupt, OSError])
def test_what_the_caller_deals_with_ended_no_export(store, monkeypatch, handled):
    store.commit({"w": torch.arange(5000.0)}, step=1)
    monkeypatch.setattr(torch, "save", lambda *_, **__: _raise(RuntimeError("odd")))
    try:
        _raise(handled("another"))
    except handled:
        with pytest.raises(StateError, match="with DCP: odd"):
            export_dcp(store, 1, "out")


def _interrupted_in_a_file(*_, **__):
    try:
        raise KeyboardInterrupt
    finally:
        raise RuntimeError("unexpected pos")


def _raise(error):
    raise error


def test_a_file_that_may_not_grow(store):
    store.commit({"w": torch.ones(1 << 20)}, step=1)
    most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, most[1]))
    try:
        with pytest.raises(StorageError, match=r"cannot write main@1 to out with DCP: .*File too large"):
            export_dcp(store, 1, "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, most)
    assert os.listdir() == ["store"]


def test_export_and_import_again(store):
    store.commit(training() | {"tied": [torch.ones(300)] * 2, "od": OrderedDict(a=1)}, step=1)
    export_dcp(store, 1, "out")
    import_dcp(store, "out", step=2)
    export_dcp(store, 2, "again")
    import_dcp(store, "again", step=3)
    assert_same(store.checkout(3), store.checkout(2))
    paths = [{path for path in store.manifest(step) if not path.startswith("optim/state/")} for step in (1, 2)]
    assert paths[0] == paths[1]


def test_export_of_a_part(store):
    store.commit(training(), step=1)
    export_dcp(store, 1, "out", paths=["model"])
    import_dcp(store, "out", step=2)
    assert_same(store.checkout(2), store.checkout(1, paths=["model"]))


def test_an_export_replaces_nothing_and_leaves_nothing(store, monkeypatch):
    store.commit({"w": torch.ones(30)}, step=1)
    Path("mine").mkdir()
    with pytest.raises(Conflict, match="mine exists"):
        export_dcp(store, 1, "mine")
    with pytest.raises(OSError, match="missing/out"):
        export_dcp(store, 1, "missing/out")
    store.commit({"a": {"b": 1}, "a.b": 2}, step=2)
    store.commit({"w": torch.eye(3).to_sparse()}, step=3)
    for step in (2, 3):
        with pytest.raises(StateError, match="with DCP"):
            export_dcp(store, step, "out")
    assert sorted(os.listdir()) == ["mine", "store"]


def test_bytes_that_are_no_file_of_torch(store, sharded):
    name = "__0_0.distcp"
    size = (sharded / name).stat().st_size
    with zipfile.ZipFile(sharded / name, "w") as made:
        made.writestr("x", b"y" * size)
    refused(store, sharded, "no whole")


def trained(steps, seed=0):
    """A model and its optimizer after so many steps, and how to go on."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Tanh(), torch.nn.Linear(30, 20))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(number):
        loss = model(torch.full((4, 40), number / 10)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    for number in range(steps):
        step(number)
    return model, optimizer, step


@pytest.mark.parametrize("behind", [0, 2], ids=["fresh", "used"])
@pytest.mark.parametrize("how", ["import", "export and import", "writer"])
def test_an_optimizer_goes_on_from_a_state_whose_numbers_became_text(tmp_path, how, behind):
    model, optimizer, step = trained(5)
    state = {"model": model.state_dict(), "optim": optimizer.state_dict()}
    with ckptstore.open(tmp_path / "store") as store:
        if how == "import":
            save(state, tmp_path / "dcp")
        elif how == "export and import":
            store.commit({"model": model, "optim": optimizer}, step=0)
            export_dcp(store, 0, tmp_path / "dcp")
        else:
            dcp_save(state, storage_writer=StoreWriter(store, step=7), no_dist=True)
        if how != "writer":
            import_dcp(store, tmp_path / "dcp", step=7)
        assert "optim/state/%30/exp_avg" in store.manifest(7)
        expected = [step(number) for number in range(3)]
        other, others, go_on = trained(behind, seed=1)
        store.checkout(7, into={"model": other, "optim": others})
        assert set(others.state) == set(other.parameters())
        assert {int(found["step"]) for found in others.state.values()} == {5}
        assert [go_on(number) for number in range(3)] == expected
        with pytest.raises(ckptstore.PathNotFound, match="optim/state/0/exp_avg"):
            store.checkout(7, into={"optim": others}, paths="optim/state/%30/exp_avg")
        store.checkout(7, into={"optim": others}, paths="optim/state/0/exp_avg")
        assert others.state[next(other.parameters())]["exp_avg"].equal(store.read(7, "optim/state/%30/exp_avg"))


def test_texts_that_are_one_number_are_left_as_they_are():
    entries: dict[str, Entry] = {f"optim/state/{segment(key)}/x": ValueEntry(key) for key in ("0", "00")}
    manifest = Manifest(entries, {"optim/state": Container("dict", ("0", "00"))})
    assert renumbered(manifest, ["optim"]) is manifest


def test_what_is_no_optimizer_keeps_its_text(tmp_path):
    with ckptstore.open(tmp_path / "store") as store:
        store.commit({"optim": {"state": {"0": torch.ones(3)}}}, step=0)
        target = {"optim": {"state": {"0": torch.zeros(3)}}}
        store.checkout(0, into=target)
        assert target["optim"]["state"]["0"].equal(torch.ones(3))
        with pytest.raises(ckptstore.StateMismatch):
            store.checkout(0, into={"optim": {"state": {0: torch.zeros(3)}}})


def save_as_safetensors(folder, state):
    writer = FileSystemWriter(folder, serialization_format=SerializationFormat.SAFETENSORS)
    dcp_save(state, storage_writer=writer, no_dist=True)
    return folder / "__0_0.distcp"


def test_a_folder_of_safetensors(store, tmp_path):
    dtypes = [dtype for dtype in DTYPES if dtype != torch.complex128]  # which safetensors have not
    tensors = {str(dtype): torch.arange(24 * dtype.itemsize, dtype=torch.uint8).view(dtype) for dtype in dtypes[1:]}
    state = {"w": {**tensors, "0": torch.tensor([True, False]), "scalar": torch.tensor(3.0)}, "none": torch.empty(0, 3)}
    state |= {"lr": [0.1, 2], "text": "a", "when": date(2024, 2, 29), "p": torch.nn.Parameter(torch.ones(4, 2))}
    save_as_safetensors(tmp_path / "saved", state)
    import_dcp(store, tmp_path / "saved", step=1)
    found = store.checkout(1)
    assert_same({**found, "p": 0}, {**state, "p": 0})
    assert found["p"].equal(state["p"]) and found["p"].requires_grad


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: data.replace(b'"w":{"dtype"', b'"v":{"dtype"'), "without it, or not as DCP writes them: 'w'"),
        (lambda data: data.replace(b'"F32"', b'"F99"'), "has the dtype F99, which torch has not"),
        (lambda data: data.replace(b'"F32"', b'"I32"'), "torch.int32 of .* is where torch.float32"),
        (lambda data: data.replace(b"[0, 0]", b"[9, 0]"), r"has the part at \[9, 0\] and not that at \[0, 0\]"),
        (lambda data: data.replace(b"DCP_SHARDING_INFO", b"DCP_SHARDING_XXXX"), "without it, or not as DCP writes"),
        (lambda data: data[: data.index(b'"w":{"dtype"')] + b" " * 500, "no whole header of safetensors"),
        (lambda data: data[:-4], "it was cut off"),
        (lambda data: data.replace(b'"data_offsets":[0,96]', b'"data_offsets":[9,96]'), "has 87 bytes, which are no"),
        (lambda data: data.replace(b'"data_offsets":[0,96]', b'"data_offsets":[97,0]'), "it was cut off|bytes"),
    ],
)
def test_a_folder_of_safetensors_that_are_not_whole(store, tmp_path, spoil, message):
    file = save_as_safetensors(tmp_path / "saved", {"w": torch.ones(6, 4), "n": 1})
    data = spoil(file.read_bytes())
    assert data != file.read_bytes()
    file.write_bytes(data)
    refused(store, tmp_path / "saved", message)


def test_a_header_of_no_bytes_is_none(tmp_path):
    (tmp_path / "file").write_bytes(bytes(8) + b"{" + bytes(1 << 20))
    assert packed._header(tmp_path / "file", 0) == (None, 0)
