from __future__ import annotations

import filecmp
import json
import math
import os
import struct
import subprocess
import sys
from glob import escape
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file, save_model
from torch.distributed.checkpoint._consolidate_hf_safetensors import consolidate_safetensors_files_on_every_rank
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

import ckptstore
from ckptstore.errors import CkptStoreError, CorruptData, FormatError, PathNotFound, StateError
from ckptstore.integrations.dcp_files import export_dcp, import_dcp
from ckptstore.integrations.safetensors import export_safetensors, import_safetensors
from ckptstore.integrations.torch_save import export_torch, import_torch
from ckptstore.testing.equality import assert_same

DTYPES = [
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32),
    *(torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
    torch.float4_e2m1fn_x2,
]
NAMES = st.text(st.sampled_from("ab01-./%()F2[]*ü"), max_size=6) | st.sampled_from(
    ["format", "%30", "a%2Fb", "layers/0"]
)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ckptstore.open("store", chunk_bytes=4096) as store:
        yield store


@st.composite
def tensors(draw):
    dtype = draw(st.sampled_from(DTYPES))
    least = 1 if dtype is torch.float4_e2m1fn_x2 else 0
    shape = draw(st.lists(st.integers(0, 5), min_size=least, max_size=3))
    data = draw(st.randoms(use_true_random=False)).randbytes(math.prod(shape) * dtype.itemsize)
    plain = torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.empty(0, dtype=torch.uint8)
    return (plain % 2 if dtype is torch.bool else plain).view(dtype).view(shape)


def in_order(state):
    return dict(sorted(state.items()))


def write(file, header, data=b"", size=None):
    """A file by hand."""
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    Path(file).write_bytes(struct.pack("<Q", len(encoded) if size is None else size) + encoded + data)


def refused(store, path, match):
    for name in (None, "model"):
        with pytest.raises(FormatError, match=match):
            import_safetensors(store, path, step=1, name=name)
    assert store.steps() == [] and not store.stats().packs


# there and back


@settings(max_examples=50, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.dictionaries(NAMES, tensors(), max_size=5), NAMES)
def test_a_file_comes_back_from_beneath_a_name(tmp_path_factory, state, name):
    folder = tmp_path_factory.mktemp("files")
    save_file(state, folder / "in")
    with ckptstore.open(folder / "store", chunk_bytes=4096) as store:
        import_safetensors(store, folder / "in", step=1, name=name)
        assert_same(store.checkout(1), {name: in_order(state)})
        export_safetensors(store, 1, folder / "out", name=name)
    assert_same(in_order(load_file(folder / "out")), in_order(state))


@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.recursive(tensors(), lambda inner: st.dictionaries(NAMES | st.integers(-3, 12), inner, max_size=4)), NAMES)
def test_a_state_comes_back_through_logical_paths(tmp_path_factory, state, name):
    folder = tmp_path_factory.mktemp("files")
    with ckptstore.open(folder / "store", chunk_bytes=4096) as store:
        made = store.commit({name: state, "other": torch.ones(1)}, step=1)
        export_safetensors(store, 1, folder / "out")
        import_safetensors(store, folder / "out", step=2)
        assert not store.diff(1, 2).changes and store.find(2).leaves == made.leaves


@settings(max_examples=100, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.dictionaries(NAMES | st.text(max_size=4), tensors(), max_size=6), st.integers(4096, 8192))
def test_a_file_is_the_one_that_safetensors_writes(tmp_path_factory, state, chunk_bytes):
    folder = tmp_path_factory.mktemp("files")
    state["large"] = torch.arange(5000.0).view(2, 50, 50)
    save_file(state, folder / "wanted", metadata={"format": "pt"})
    turned = {name: t.movedim(0, -1).contiguous().movedim(-1, 0) if t.ndim else t for name, t in state.items()}
    with ckptstore.open(folder / "store", chunk_bytes=chunk_bytes) as store:
        store.commit({"model": state}, step=1)
        store.commit({"model": turned}, step=2)
        for step in (1, 2):
            export_safetensors(store, step, folder / str(step), name="model")
            assert filecmp.cmp(folder / str(step), folder / "wanted", shallow=False)


@settings(max_examples=40, suppress_health_check=list(HealthCheck), deadline=None)
@given(st.dictionaries(NAMES.filter(bool), st.integers(0, 3), min_size=1, max_size=8), st.booleans())
def test_ties_are_those_of_the_state(tmp_path_factory, which, part):
    folder = tmp_path_factory.mktemp("files")
    made = [torch.arange(2000.0), torch.ones(3), torch.empty(0, 2), torch.tensor(7)]
    with ckptstore.open(folder / "store", chunk_bytes=4096) as store:
        store.commit({"model": {name: made[number] for name, number in which.items()}}, step=1)
        paths = [*store.manifest(1)][: 4 if part else 8]
        export_safetensors(store, 1, folder / "out", paths=[*map(escape, paths)])
        found = {path: store.read(1, path) for path in paths}
    groups: dict[int, list[str]] = {}
    for path, number in zip(paths, which.values(), strict=False):
        groups.setdefault(number, []).append(path)
    assert_same(in_order(load_file(folder / "out")), in_order({path: found[path] for path, *_ in groups.values()}))
    with safe_open(folder / "out", "pt") as opened:
        tied = {path: first for first, *others in groups.values() for path in others}
        assert opened.metadata() == {"format": "pt"} | tied


class Strange(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name in ("a/b", "50%", "a%2Fb", "0", "w[1]", "w1"):
            self.register_parameter(name, torch.nn.Parameter(torch.randn(3)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)),
        lambda: torch.nn.ParameterList([torch.randn(2), torch.randn(3)]),
        Strange,
    ],
)
def test_what_is_beneath_a_name_loads_into_the_model(store, make):
    model, other, third = make(), make(), make()
    store.commit({"model": model, "model1": torch.ones(2), "lr": 0.1}, step=1)
    export_safetensors(store, 1, "model.safetensors", name="model")
    other.load_state_dict(load_file("model.safetensors"))
    assert_same(dict(other.state_dict()), dict(model.state_dict()))
    import_safetensors(store, "model.safetensors", step=2, name="model")
    store.checkout(2, into={"model": third})
    assert_same(dict(third.state_dict()), dict(model.state_dict()))


def test_modules_in_dicts_are_joined_by_dots(store):
    encoder, head = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
    whole = torch.nn.ModuleDict({"encoder": encoder, "heads": torch.nn.ModuleList([head])})
    store.commit({"model": {"encoder": encoder, "heads": [dict(head.state_dict())]}}, step=1)
    export_safetensors(store, 1, "out", name="model")
    assert set(load_file("out")) == set(whole.state_dict())
    whole.load_state_dict(load_file("out"))


def test_two_leaves_of_one_name(store):
    store.commit({"model": {"a.b": torch.ones(1), "a": {"b": torch.zeros(1)}}}, step=1)
    with pytest.raises(StateError, match=r"model/a\.b and model/a/b would both be named 'a\.b'"):
        export_safetensors(store, 1, "out", name="model")
    export_safetensors(store, 1, "out", name="model", paths="model/a")
    assert load_file("out")["a.b"].item() == 0.0


def test_more_names_than_a_file_can_hold(store):
    store.commit({"model": {f"{number:02}{'x' * 1_000_000}": torch.zeros(1) for number in range(100)}}, step=1)
    with pytest.raises(StateError, match=r"100,\d{3},\d{3} bytes .* 100,000,000"):
        export_safetensors(store, 1, "out", name="model")
    assert os.listdir() == ["store"]
    export_safetensors(store, 1, "out", name="model", paths="model/0*")
    assert len(load_file("out")) == 10


def test_a_model_with_ties(store):
    model, other = (
        torch.nn.ModuleDict({"in": torch.nn.Embedding(5, 3), "out": torch.nn.Linear(3, 5)}) for _ in range(2)
    )
    for each in (model, other):
        each["out"].weight = each["in"].weight
    save_model(model, "saved")
    import_safetensors(store, "saved", step=1, name="model")
    state = store.checkout(1)["model"]
    assert state["in.weight"] is state["out.weight"]
    export_safetensors(store, 1, "out", name="model")
    load_model(other, "out")
    assert_same(dict(other.state_dict()), dict(model.state_dict()))


def test_a_tie_named_as_an_entry_of_the_metadata(store):
    weight = torch.ones(4)
    store.commit({"a": weight, "format": weight}, step=1)
    export_safetensors(store, 1, "out")
    import_safetensors(store, "out", step=2)
    state = store.checkout(2)
    assert state["a"] is state["format"]


def test_damaged_bytes_leave_no_file(store):
    store.commit({"model": {"w": torch.arange(5000.0), "b": torch.ones(5000)}}, step=1)
    for pack in Path("store").rglob("*.pack"):
        data = bytearray(pack.read_bytes())
        data[len(data) // 2] ^= 1
        pack.chmod(0o600)
        pack.write_bytes(data)
    Path("old").write_text("old")
    for name in ("new", "old"):
        with pytest.raises(CorruptData, match="model/w"):
            export_safetensors(store, 1, name, overwrite=True)
    assert sorted(os.listdir()) == ["old", "store"] and Path("old").read_text() == "old"


@pytest.mark.parametrize("export", [export_safetensors, export_dcp])
def test_an_export_tells_how_far_it_is(store, export):
    store.commit({"model": {"w": torch.arange(5000.0), "b": torch.ones(5000), "s": torch.ones(2)}}, step=1)
    calls = []
    export(store, 1, "out", progress=lambda *progress: calls.append(progress))
    assert calls[-1] == ("checkout", 40_000, 40_000) and [done for _, done, _ in calls] == sorted(
        {it[1] for it in calls}
    )

    def stop(*_):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        export(store, 1, "other", progress=stop)
    assert sorted(os.listdir()) == ["out", "store"]


def test_leaves_beneath_a_name_can_be_chosen(store):
    store.commit({"model": {"w[1]": torch.ones(1), "w1": torch.ones(2), "note": "text"}, "w": torch.ones(3)}, step=1)
    with pytest.raises(StateError, match="model/note: a plain value"):
        export_safetensors(store, 1, "out", name="model")
    export_safetensors(store, 1, "out", name="model", paths=["**/w?1]", "w"])
    assert load_file("out").keys() == {"w[1]"}
    export_torch(store, 1, "out.pt", name="model", paths=["**/w?1]", "w"])
    assert torch.load("out.pt").keys() == {"w[1]"}


@pytest.mark.parametrize("export", [export_safetensors, export_torch, export_dcp])
def test_a_name_that_is_not_there(store, export):
    store.commit({"model": {"w": torch.ones(1)}, "a/b": {"w": torch.ones(1)}}, step=1)
    for name in ("modle", "model/w", "a%2Fb"):
        with pytest.raises(PathNotFound, match=rf"main@1 has no name '{name}'; nearest: "):
            export(store, 1, "out", name=name)
    with pytest.raises(PathNotFound, match="nothing at the name 'model' is selected by a%2Fb"):
        export(store, 1, "out", name="model", paths="a%2Fb")
    assert os.listdir() == ["store"]


def test_a_name_of_one_leaf(store):
    store.commit({"w": torch.ones(1), "model": {}}, step=1)
    with pytest.raises(PathNotFound, match="nothing beneath the name 'w'"):
        export_safetensors(store, 1, "out", name="w")
    with pytest.raises(StateError, match="at the name 'w' is no dict"):
        export_dcp(store, 1, "out", name="w")
    assert os.listdir() == ["store"]
    export_safetensors(store, 1, "out", name="model")
    assert load_file("out") == {}


def test_other_formats_beneath_a_name(store):
    state = {"w": torch.ones(3), "b": {"c": 1}}
    store.commit({"a/b": state, "lr": 0.1}, step=1)
    export_torch(store, 1, "out.pt", name="a/b")
    export_dcp(store, 1, "out", name="a/b")
    assert_same(torch.load("out.pt"), state)
    import_torch(store, "out.pt", step=2, name="a/b")
    import_dcp(store, "out", step=3, name="a/b")
    assert_same(store.checkout(2), {"a/b": state})
    assert_same(store.checkout(3), {"a/b": state})


# folders of Hugging Face


@pytest.fixture
def folder(tmp_path):
    """Two files, with an index of them."""
    made = tmp_path / "folder"
    made.mkdir()
    state = pretrained()
    parts = {"model-00001-of-00002.safetensors": list(state)[:2], "model-00002-of-00002.safetensors": list(state)[2:]}
    for file, names in parts.items():
        save_file({name: state[name] for name in names}, made / file, metadata={"format": "pt"})
    index(made, {name: file for file, names in parts.items() for name in names})
    return made


def pretrained():
    return {
        f"layers.{number}.{name}": torch.arange(60.0) * number for number in range(2) for name in ("bias", "weight")
    }


def index(folder, weight_map):
    document = {"metadata": {"total_size": 960}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(document))


def weight_map(folder):
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def test_a_folder_with_an_index(store, folder):
    import_safetensors(store, folder, step=1, name="model")
    assert_same(store.checkout(1), {"model": pretrained()})
    import_safetensors(store, folder, step=2)
    assert_same(store.checkout(2), pretrained())


def test_a_folder_of_links(store, folder):
    """As in the cache of Hugging Face's hub."""
    Path("links").mkdir()
    for file in folder.iterdir():
        Path("links", file.name).symlink_to(file)
    import_safetensors(store, "links", step=1)
    assert_same(store.checkout(1), pretrained())


def test_a_folder_with_one_file(store, folder):
    Path("one").mkdir()
    save_file(pretrained(), "one/model.safetensors")
    import_safetensors(store, "one", step=1)
    assert_same(store.checkout(1), pretrained())
    (folder / "model.safetensors.index.json").rename("one/model.safetensors.index.json")
    with pytest.raises(FormatError, match="both"):
        import_safetensors(store, "one", step=2)
    Path("none").mkdir()
    with pytest.raises(FormatError, match="none has neither"):
        import_safetensors(store, "none", step=2)
    assert store.steps() == [1]


def spoilt_shard(folder):
    file = folder / "model-00002-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])


def stranger(folder):
    save_file(pretrained() | {"more": torch.ones(1)}, folder / "model-00002-of-00002.safetensors")


BAD = {
    "no JSON": (lambda it: (it / "model.safetensors.index.json").write_text("{"), r"index\.json is no index"),
    "no text": (
        lambda it: (it / "model.safetensors.index.json").write_bytes(b'{"\xff": 1}'),
        r"index\.json is no index",
    ),
    "no map": (lambda it: (it / "model.safetensors.index.json").write_text("{}"), r"index\.json .*weight_map"),
    "no strs": (lambda it: index(it, {"a": 1}), r"index\.json is no index"),
    "no names": (lambda it: index(it, {}), r"index\.json is no index"),
    "missing": (lambda it: (it / "model-00002-of-00002.safetensors").unlink(), "00002-of-00002.safetensors is missing"),
    "cut off": (spoilt_shard, "00002-of-00002.safetensors is no whole"),
    "not there": (lambda it: index(it, weight_map(it) | {"new": "model-00001-of-00002.safetensors"}), "00001.*'new'"),
    "unnamed": (stranger, "00002-of-00002.safetensors holds"),
    "in other": (
        lambda it: index(it, {**weight_map(it), "layers.0.bias": "model-00002-of-00002.safetensors"}),
        "0.bias",
    ),
    "above": (lambda it: index(it, {"x": "../x.safetensors"}), r"'\.\./x\.safetensors', which is not in it"),
    "absolute": (lambda it: index(it, {"x": str(it.parent / "x.safetensors")}), "which is not in it"),
    "itself": (lambda it: index(it, {"x": ""}), "is missing"),
    "NUL": (lambda it: index(it, {"x": "a\0b"}), "is missing"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_folder_that_contradicts_itself(store, folder, name):
    change, match = BAD[name]
    save_file({"x": torch.ones(2)}, folder.parent / "x.safetensors")
    change(folder)
    refused(store, folder, match)


@pytest.mark.parametrize(
    ("files", "match"),
    [
        (["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"], r"bring model\.safetensors\.index"),
        (["a.safetensors", "b.safetensors"], r"give one of its files, a\.safetensors, b\.safetensors"),
        (["a.safetensors", "pytorch_model.bin"], r"give its file a\.safetensors$"),
        (["config.json", "pytorch_model.bin"], r"give its file pytorch_model\.bin$"),
        (
            ["pytorch_model-00001-of-00002.bin", "x.bin"],
            r"pytorch_model-.*\.bin is a part of a state: .* as safetensors",
        ),
        (["config.json"], "give a folder that has one of them, or a file"),
    ],
)
def test_a_folder_without_an_index(store, files, match):
    Path("folder").mkdir()
    for file in files:
        save_file({"w": torch.ones(2)}, f"folder/{file}")
    refused(store, "folder", f"folder has neither .*: {match}")


def test_one_of_several_files(store, folder):
    refused(store, folder / "model-00002-of-00002.safetensors", r"file 2 of 2: give the folder .*folder, or rename")
    (folder / "model-00002-of-00002.safetensors").rename("part.safetensors")
    save_file({"w": torch.ones(2)}, "model-00001-of-00001.safetensors")
    for step, file in enumerate(["part.safetensors", "model-00001-of-00001.safetensors"]):
        import_safetensors(store, file, step=step)


# files of DCP's HuggingFaceStorageWriter


def hugging_face(folder):
    """Files as several ranks write them, one each."""
    for rank in range(2):
        offsets = {"w": {"saved_offsets": [2 * rank, 0]}}
        notes = {"DCP_SHARDING_INFO": json.dumps(offsets), "DCP_VERSION": "1.0", "format": "pt"}
        file = f"shard-0000{rank + 1}-model-00001-of-00001.safetensors"
        save_file({"w": torch.full((2, 3), float(rank))}, folder / file, metadata=notes)


def test_what_ranks_saved_each_its_part(store, tmp_path):
    (tmp_path / "ranks").mkdir()
    hugging_face(tmp_path / "ranks")
    consolidate = "consolidate_safetensors_files_on_every_rank"
    refused(store, "ranks", f"has neither .*: {consolidate}|ranks has .*{consolidate}")
    for file in sorted((tmp_path / "ranks").iterdir()):
        refused(store, file, f"DCP_SHARDING_INFO.*{consolidate}")
    file.rename("model.safetensors")
    refused(store, "model.safetensors", consolidate)
    refused(store, tmp_path, consolidate)


def test_what_ranks_saved_comes_together(store, tmp_path):
    (tmp_path / "ranks").mkdir()
    (tmp_path / "whole").mkdir()
    hugging_face(tmp_path / "ranks")
    consolidate_safetensors_files_on_every_rank("ranks", "whole", {"w": 1})
    (file,) = Path("whole").iterdir()
    import_safetensors(store, file, step=1)
    assert store.read(1, "w").equal(torch.tensor([0.0, 0, 1, 1])[:, None].expand(4, 3))


def test_what_one_rank_saved_of_all(store):
    state = {"w": torch.arange(6.0).view(2, 3), "b": torch.ones(2)}
    dcp_save(state, storage_writer=HuggingFaceStorageWriter("whole"), no_dist=True)
    import_safetensors(store, "whole", step=1)
    import_safetensors(store, "whole/model-00001-of-00001.safetensors", step=2)
    assert_same(store.checkout(1), in_order(state))
    assert_same(store.checkout(2), in_order(state))


# what is no whole file


def entry(start, stop, shape, dtype="U8"):
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


HOSTILE = {
    "empty": (b"", b"", None),
    "no JSON": (b"{{", b"", None),
    "long header": (b"{}", b"", 1 << 20),
    "endless header": (b"{}", b"", (1 << 64) - 1),
    "overlap": ({"a": entry(0, 4, [4]), "b": entry(2, 6, [4])}, bytes(6), None),
    "same place": ({"a": entry(0, 4, [4]), "b": entry(0, 4, [4])}, bytes(4), None),
    "hole": ({"a": entry(0, 4, [4]), "b": entry(6, 8, [2])}, bytes(8), None),
    "late": ({"a": entry(2, 6, [4])}, bytes(6), None),
    "cut off": ({"a": entry(0, 8, [8])}, bytes(7), None),
    "bytes behind": ({"a": entry(0, 4, [4])}, bytes(5), None),
    "backwards": ({"a": entry(4, 0, [4])}, bytes(4), None),
    "other size": ({"a": entry(0, 4, [3])}, bytes(4), None),
    "too many": ({"a": entry(0, 0, [1 << 32, 1 << 32])}, b"", None),
    "negative": ({"a": entry(0, 4, [-4])}, bytes(4), None),
    "unknown": ({"a": entry(0, 4, [4], "U9")}, bytes(4), None),
    "six bits": ({"a": entry(0, 3, [4], "F6_E2M3")}, bytes(3), None),
    "odd halves": ({"a": entry(0, 3, [2, 3], "F4")}, bytes(3), None),
    "no object": ({"a": 7}, b"", None),
    "twice": (b'{"a":%b,"a":%b}' % tuple(json.dumps(entry(at, at + 1, [1])).encode() for at in (0, 1)), bytes(2), None),
    "again": (b'{"a":%b,"a":%b}' % tuple(json.dumps(entry(at, at + 1, [1])).encode() for at in (1, 0)), bytes(2), None),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers(store, name):
    header, data, size = HOSTILE[name]
    write("bad.safetensors", header, data, size)
    if name == "empty":
        Path("bad.safetensors").write_bytes(b"")
    refused(store, "bad.safetensors", r"bad\.safetensors")


def test_random_damage_never_commits_in_part(store):
    rng = torch.Generator().manual_seed(0)
    save_file(pretrained(), "in.safetensors")
    data = bytearray(Path("in.safetensors").read_bytes())
    header = 8 + int.from_bytes(data[:8], "little")
    for _ in range(150):
        place = int(torch.randint(header, (), generator=rng))
        spoilt = bytes(data[:place]) + bytes([data[place] ^ (1 << place % 8)]) + bytes(data[place + 1 :])
        Path("in.safetensors").write_bytes(spoilt)
        before = store.steps()
        try:
            import_safetensors(store, "in.safetensors", step=len(before), name="model")
        except CkptStoreError:
            assert store.steps() == before
    assert not store.verify().problems


# memory


def test_a_tensor_is_read_chunk_by_chunk(store, boxes):
    save_file({"w": torch.arange(1 << 16, dtype=torch.int64)}, "in")
    import_safetensors(store, "in", step=1)
    assert len(boxes) == 128 and max(boxes) == 4096


LIMITED = """
import re, resource, sys
import torch
import ckptstore
from ckptstore.integrations import MODULE
with ckptstore.open("store") as store:
    store.commit({"w": torch.ones(1)}, step=0)
    held = int(re.search("VmData:.*?([0-9]+)", open("/proc/self/status").read())[1]) << 10
    resource.setrlimit(resource.RLIMIT_DATA, (held + (256 << 20),) * 2)
    MODULE.CALL
    print(store.find(1).logical_bytes)
"""


def done_within_limits(module, call, path):
    """Bytes of the commit 1 that a process imports or exports that may take 256 MiB more of memory."""
    script = LIMITED.replace("MODULE", module).replace("CALL", call)
    done = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def imported_within_limits(name, path):
    return done_within_limits(name, f"import_{name}(store, sys.argv[1], step=1)", path)


def test_a_commit_larger_than_the_memory_that_may_be_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = large_state()
    with ckptstore.open("store") as store:
        store.commit({"model": state}, step=1)
    call = "export_safetensors(store, 1, sys.argv[1], name='model')"
    assert done_within_limits("safetensors", call, "out") == 1 << 29
    assert all(tensor.equal(state[name]) for name, tensor in load_file("out").items())


def test_a_commit_larger_than_the_memory_that_may_be_taken_for_dcp(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = large_state()
    with ckptstore.open("store") as store:
        store.commit({"model": state}, step=1)
        assert done_within_limits("dcp_files", "export_dcp(store, 1, sys.argv[1])", "out") == 1 << 29
        import_dcp(store, "out", step=2)
        assert not store.diff(1, 2).changes


def large_state():
    """512 MiB in an eighth of the memory."""
    numbers = torch.arange(256, dtype=torch.uint8).repeat((1 << 18) + 1)
    return {f"w{first}": numbers[first:][: 1 << 26] for first in range(8)}


def test_a_file_larger_than_the_memory_that_may_be_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    size = 1 << 29
    write("large.safetensors", {"w": entry(0, size, [1 << 14, 1 << 15])})
    with open("large.safetensors", "ab") as opened:
        opened.truncate(opened.tell() + size)
    assert imported_within_limits("safetensors", "large.safetensors") == size


def test_a_snapshot_larger_than_the_memory_that_may_be_taken(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    size = 1 << 29
    tensor = {"location": "w", "serializer": "buffer_protocol", "dtype": "torch.uint8", "shape": [size]}
    manifest = {"0/w": {"type": "Tensor", "replicated": False} | tensor}
    Path("taken").mkdir()
    Path("taken/.snapshot_metadata").write_text(json.dumps({"version": "0.1.0", "world_size": 1, "manifest": manifest}))
    with open("taken/w", "wb") as opened:
        opened.truncate(size)
    assert imported_within_limits("torchsnapshot", "taken") == size


@pytest.mark.parametrize(
    ("shape", "held"),
    [([0, 2**62], 0), ([0, 2**63], 0), ([0, 2**62, 2**62], 0), ([2**64 - 1, 0], 0), ([1] * 100, 4), ([1] * 65, 4)],
)
def test_shapes_that_no_array_has(store, tmp_path, shape, held):
    encoded = json.dumps({"odd": {"dtype": "F32", "shape": shape, "data_offsets": [0, held]}}).encode()
    file = tmp_path / "odd.safetensors"
    file.write_bytes(struct.pack("<Q", len(encoded)) + encoded + bytes(held))
    with pytest.raises(FormatError, match=r"odd\.safetensors.*'odd'.*numpy has no torch.float32 of (shape|\d+ dims)"):
        import_safetensors(store, file, step=1)
    assert store.steps() == []


def test_an_index_that_names_files_that_cannot_be(store, tmp_path):
    for name in ["x" * 5000, "x/" * 3000 + "x", "\0", "\ud800"]:
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
        with pytest.raises(FormatError, match=r"which no file system holds|is missing|no index"):
            import_safetensors(store, tmp_path, step=1)
    assert store.steps() == []
