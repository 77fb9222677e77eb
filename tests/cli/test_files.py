from __future__ import annotations

import io
import os
import pickle
import sys
import types
from argparse import Namespace
from collections import OrderedDict
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch

import ckptstore
from ckptstore.errors import Conflict, FormatError, InvalidArgument, StateError, StorageError
from ckptstore.integrations.safetensors import export_safetensors, import_safetensors
from ckptstore.integrations.safetensors.names import nested
from ckptstore.integrations.torch_save import export_torch, import_torch
from ckptstore.state.tree import flatten
from ckptstore.testing.equality import assert_same

HOLDABLE = [
    *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32),
    *(torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.complex64),
    *(torch.float8_e4m3fn, torch.float8_e4m3fnuz, torch.float8_e5m2, torch.float8_e5m2fnuz, torch.float8_e8m0fnu),
]


def by_path(state):
    return dict(sorted(flatten(state).leaves.items()))


def assert_same_leaves(one, other):
    assert_same(*({path: getattr(leaf, "tensor", leaf) for path, leaf in by_path(it).items()} for it in (one, other)))


def bits(dtype: torch.dtype) -> torch.Tensor:
    plain = torch.arange(2 * 3 * dtype.itemsize, dtype=torch.uint8) % 2
    return plain.view(dtype).view(2, 3)


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with ckptstore.open("store") as store:
        yield store


def test_export_and_import_of_safetensors(url, output, asked):
    assert output("export", url, "best", "out.safetensors", "--paths", "model").startswith("wrote main@100 to out")
    loaded = safetensors.torch.load_file("out.safetensors")
    assert set(loaded) == {"model/emb.weight", "model/frozen", "model/layers/0"}
    commit = asked("import", url, "out.safetensors", "--step", 7, "--run", "new")
    assert (commit["run"], commit["step"], commit["leaves"]) == ("new", 7, 4)
    with ckptstore.open(url) as store:
        assert_same_leaves(store.checkout("new@7"), {"model": store.checkout(100)["model"]})


def test_an_import_goes_to_the_only_run(tmp_path, asked, run):
    torch.save({"x": torch.ones(3)}, tmp_path / "file.pt")
    with ckptstore.open(tmp_path / "store", run="exp-7") as store:
        store.commit({"x": torch.zeros(3)}, step=1)
    place, file = str(tmp_path / "store"), str(tmp_path / "file.pt")
    assert asked("import", place, file, "--step", 2)["run"] == "exp-7"
    assert asked("import", place, file, "--step", 2, "--run", "other")["run"] == "other"
    assert "choose one with --run; there are exp-7, other" in run("import", place, file, "--step", 3, code=1).stderr


def test_what_is_known_of_an_import(url, output, run, asked):
    assert output("export", url, "best", "out.safetensors", "--paths", "model").startswith("wrote main@100 to out")
    about = ("--metadata", '{"loss": 2.5}', "--parent", "main@100")
    commit = asked("import", url, "out.safetensors", "--step", 7, "--run", "new", *about)
    assert (commit["metadata"], commit["parent"]) == ({"loss": 2.5}, "main@100")
    with ckptstore.open(url, run="new") as store:
        export_torch(store, 7, "out.pt")
        assert import_torch(store, "out.pt", step=8, metadata={"loss": 1}, parent="main@100").parent_ref == "main@100"
    failed = run("import", url, "out.safetensors", "--step", 9, "--metadata", "{loss}", code=2)
    assert "--metadata {loss} is no JSON" in failed.stderr
    failed = run("import", url, "out.safetensors", "--step", 9, "--metadata", "[" * 50_000, code=2)
    assert "is no JSON" in " ".join(failed.stderr.split()) and len(failed.stderr) < 1000
    assert "no step 5" in run("import", url, "out.safetensors", "--step", 9, "--parent", "main@5", code=1).stderr


@pytest.mark.parametrize("kind", ["torch", "dcp", "torchsnapshot"])
def test_what_is_known_of_an_import_of_any_format(url, run, asked, kind):
    file = Path(__file__).parents[1] / "integrations" / "snapshots" / "ranks"
    if kind != "torchsnapshot":
        file = Path("last.ckpt")
        run("export", url, 100, file, "--format", kind, "--paths", "model")
    about = ("--metadata", '{"loss": 2.5}', "--parent", "main@100")
    commit = asked("import", url, file, "--step", 7, "--run", "new", *about)
    assert (commit["metadata"], commit["parent"]) == ({"loss": 2.5}, "main@100")


def test_a_model_comes_back_as_it_was_imported(url, output, run, asked):
    model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    safetensors.torch.save_file(model.state_dict(), "in.safetensors", metadata={"format": "pt"})
    output("import", url, "in.safetensors", "--step", 7, "--run", "new", "--name", "model")
    output("export", url, "new@7", "out.safetensors", "--name", "model")
    other.load_state_dict(safetensors.torch.load_file("out.safetensors"))
    assert_same(dict(other.state_dict()), dict(model.state_dict()))
    assert Path("out.safetensors").read_bytes() == Path("in.safetensors").read_bytes()
    output("export", url, "new@7", "out.pt", "--name", "model")
    other.load_state_dict(torch.load("out.pt"))
    assert "no name 'modle'; nearest: model" in run("export", url, "new@7", "x.pt", "--name", "modle", code=1).stderr
    assert not Path("x.pt").exists()


def test_import_of_folders_of_hugging_face(url, output, run):
    for name in ("one", "many"):
        Path(name).mkdir()
    for file in ("one/model.safetensors", "many/model-00001-of-00001.safetensors"):
        safetensors.torch.save_file({"w.x": torch.ones(3)}, file)
    index = Path("many/model.safetensors.index.json")
    index.write_text('{"weight_map": {"w.x": "model-00001-of-00001.safetensors"}}')
    for step, folder in ((300, "one"), (301, "many")):
        assert output("import", url, folder, "--step", step, "--name", "model") == f"committed main@{step}: 1 leaf\n"
        assert ckptstore.open(url).read(step, "model/w.x").tolist() == [1, 1, 1]
    index.write_text('{"weight_map": {"w.x": "../one/model.safetensors"}}')
    assert "'../one/model.safetensors'" in run("import", url, "many", "--step", 302, code=1).stderr
    assert "--format" in run("import", url, ".", "--step", 302, code=2).stderr
    assert "neither" in run("import", url, ".", "--step", 302, "--format", "safetensors", code=1).stderr
    assert ckptstore.open(url).latest() == 301


def test_folders_of_hugging_face_that_lack_something(url, run):
    Path("old").mkdir()
    torch.save({"w": torch.ones(3)}, "old/pytorch_model.bin")
    assert "give its file pytorch_model.bin" in run("import", url, "old", "--step", 300, code=1).stderr
    safetensors.torch.save_file({"w": torch.ones(3)}, "old/model-00001-of-00002.safetensors")
    assert "bring model.safetensors.index.json" in run("import", url, "old", "--step", 300, code=1).stderr


def test_a_folder_of_dcp_that_each_rank_saved_for_itself(url, run):
    Path("ranks").mkdir()
    Path("ranks/__0.metadata").touch()
    assert "use_collectives=False" in run("import", url, "ranks", "--step", 300, code=1).stderr


def test_export_and_import_of_torch(url, asked, output):
    document = asked("export", url, 200, "out.pt", "--paths", "model", "--paths", "optim/betas")
    assert document["format"] == "torch" and document["bytes"] == os.path.getsize("out.pt")
    assert output("import", url, "out.pt", "--step", 300) == "committed main@300: 5 leaves\n"
    with ckptstore.open(url) as store:
        assert_same(store.checkout(300), store.checkout(200, paths=["model", "optim/betas"]))
        assert_same(torch.load("out.pt", weights_only=True), store.checkout(300))


def test_a_torch_file_with_pickles(url, run, output):
    torch.save({"half": Fraction(1, 2)}, "object.pt")
    assert "allow pickles" in run("import", url, "object.pt", "--step", 300, code=1).stderr
    output("import", url, "object.pt", "--step", 300, "--allow-pickle")
    assert ckptstore.open(url).checkout(300, allow_pickle=True) == {"half": Fraction(1, 2)}


@pytest.mark.parametrize("file", [["out.pt"], ["out", "--format", "dcp"]], ids=["torch", "dcp"])
def test_pickles_are_exported_where_that_is_allowed(url, run, output, file):
    with ckptstore.open(url) as store:
        store.commit({"arguments": Namespace(lr=1)}, step=300, allow_pickle=True)
    assert "--allow-pickle" in run("export", url, 300, *file, code=1).stderr
    assert not Path(file[0]).exists()
    output("export", url, 300, *file, "--allow-pickle")
    output("import", url, file[0], "--step", 301, "--allow-pickle")
    assert ckptstore.open(url).checkout(301, allow_pickle=True) == {"arguments": Namespace(lr=1)}
    assert "--allow-pickle is for" in run("export", url, 300, "out.safetensors", "--allow-pickle", code=2).stderr


def test_export_and_import_of_dcp(url, asked, output, run):
    document = asked("export", url, "latest", "out", "--format", "dcp", "--paths", "model/frozen", "--paths", "optim")
    sizes = [file.stat().st_size for file in Path("out").iterdir()]
    assert document["format"] == "dcp" and document["bytes"] == sum(sizes)
    assert output("import", url, "out", "--step", 300) == "committed main@300: 4 leaves\n"
    with ckptstore.open(url) as store:
        assert_same(store.checkout(300), store.checkout(200, paths=["model/frozen", "optim"]))
    assert "exists" in run("export", url, 0, "out", "--format", "dcp", code=1).stderr
    assert "--force" in run("export", url, 0, "out", "--format", "dcp", "--force", code=2).stderr


def test_import_of_torchsnapshot(url, output, run):
    snapshot = Path(__file__).parents[1] / "integrations" / "snapshots" / "ranks"
    assert output("import", url, snapshot, "--step", 300).startswith("committed main@300")
    assert ckptstore.open(url).read(300, "same/step") == 7
    assert "no file .metadata" in run("import", url, snapshot, "--step", 301, "--format", "dcp", code=1).stderr
    assert "--format" in run("import", url, ".", "--step", 301, code=2).stderr


def test_import_beneath_a_name(url, output):
    torch.save([torch.ones(2)], "list.bin")
    output("import", url, "list.bin", "--step", 300, "--name", "things")
    assert ckptstore.open(url).checkout(300)["things"][0].tolist() == [1.0, 1.0]


def test_the_format_must_be_known(url, run):
    refused = run("export", url, 0, "out.ckpt", code=2).stderr
    assert "give --format, one of safetensors, torch, dcp" in " ".join(refused.split())
    run("export", url, 0, "out.ckpt", "--format", "torch")
    run("import", url, "out.ckpt", "--step", 500, "--run", "lightning")
    Path("out.ckpt").rename("out.tensors")
    assert "--format" in run("import", url, "out.tensors", "--step", 9, code=2).stderr
    Path("empty").mkdir()
    stderr = run("import", url, "empty", "--step", 9, code=2).stderr
    assert "empty holds none of .metadata, .snapshot_metadata" in " ".join(stderr.split())


def test_nothing_is_overwritten_unasked(url, run):
    Path("out.pt").write_text("mine")
    assert "--force" in run("export", url, 0, "out.pt", code=1).stderr
    assert Path("out.pt").read_text() == "mine"
    run("export", url, 0, "out.pt", "--force")
    assert len(torch.load("out.pt", weights_only=False)) == 3
    assert sorted(os.listdir()) == ["ckpts", "out.pt"]


def test_what_is_overwritten_keeps_its_permissions_and_links(url, run):
    Path("real.pt").write_text("mine")
    Path("real.pt").chmod(0o640)
    Path("link.pt").symlink_to("real.pt")
    run("export", url, 0, "link.pt", "--force")
    assert Path("link.pt").is_symlink()
    assert Path("real.pt").stat().st_mode & 0o777 == 0o640
    assert len(torch.load("real.pt", weights_only=False)) == 3


def test_only_files_are_overwritten(url, run):
    os.mkfifo("pipe.pt")
    Path("folder.pt").mkdir()
    Path("circle.pt").symlink_to("circle.pt")
    Path("link.pt").symlink_to("pipe.pt")
    for name in ("pipe.pt", "folder.pt", "circle.pt", "link.pt"):
        assert "no regular file" in run("export", url, 0, name, "--force", code=1).stderr
    assert Path("pipe.pt").is_fifo()
    assert sorted(os.listdir()) == ["circle.pt", "ckpts", "folder.pt", "link.pt", "pipe.pt"]


@pytest.mark.parametrize("dtype", HOLDABLE, ids=str)
def test_every_dtype_that_safetensors_has(store, dtype):
    tensors = {"a": bits(dtype), "b": bits(dtype)[:, :0], "c": bits(dtype)[0, 0], "d": bits(dtype).t()}
    store.commit(tensors, step=0)
    export_safetensors(store, 0, "out.safetensors")
    import_safetensors(store, "out.safetensors", step=1)
    assert_same_leaves(store.checkout(1), {**tensors, "d": tensors["d"].contiguous()})


def test_tied_tensors_stay_tied(store):
    weight = torch.ones(40)
    store.commit({"b": weight, "a": weight}, step=0)
    export_safetensors(store, 0, "out.safetensors")
    assert set(safetensors.torch.load_file("out.safetensors")) == {"b"}
    import_safetensors(store, "out.safetensors", step=1)
    state = store.checkout(1)
    assert state["a"] is state["b"]


def test_safetensors_refuses_what_it_cannot_hold(store):
    store.commit(
        {
            "lr": 0.1,
            "array": torch.ones(3).numpy(),
            "wide": torch.ones(3, dtype=torch.complex128),
            "sparse": torch.eye(3).to_sparse(),
            "half": torch.zeros(1, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)[0],
            "fine": torch.ones(3),
        },
        step=0,
    )
    with pytest.raises(StateError) as caught:
        export_safetensors(store, 0, "out.safetensors")
    for reason in (
        "lr: a plain",
        "array: a numpy",
        "wide: dtype complex128",
        "sparse/indices: a part",
        "hold 6 ",
        "half: a float4",
    ):
        assert reason in str(caught.value)
    assert "fine" not in str(caught.value) and os.listdir() == ["store"]
    export_safetensors(store, 0, "out.safetensors", paths=["fine"])


def test_safetensors_cannot_hold_what_is_named_as_its_own_entry(store, tmp_path):
    store.commit({"__metadata__": torch.ones(2), "a": torch.ones(2)}, step=77)
    with pytest.raises(StateError, match="__metadata__: named as the format's own entry"):
        export_safetensors(store, 77, tmp_path / "file.safetensors")
    assert not (tmp_path / "file.safetensors").exists()


@pytest.mark.parametrize("export", [export_safetensors, export_torch])
def test_a_name_of_digits_is_no_rank(store, export):
    store.commit({"٣": torch.ones(3), "٤": {"٤": torch.zeros(3)}}, step=0)
    export(store, 0, "out.bin", name="٤")
    assert Path("out.bin").exists()


@pytest.mark.parametrize("export", [export_safetensors, export_torch])
def test_a_failed_export_leaves_nothing(store, export, monkeypatch):
    store.commit({"a": torch.ones(3)}, step=0)
    Path("old.bin").write_text("old")

    def fail(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    for name in ("new.bin", "old.bin"):
        with pytest.raises(OSError, match="No space"):
            export(store, 0, name, overwrite=True)
    with pytest.raises(Conflict, match=r"overwrite it \(overwrite=True, --force\)"):
        export(store, 0, "old.bin")
    with pytest.raises(OSError, match=r"missing/out\.bin"):
        export(store, 0, "missing/out.bin")
    assert Path("old.bin").read_text() == "old" and sorted(os.listdir()) == ["old.bin", "store"]


@pytest.mark.parametrize("export", [export_safetensors, export_torch])
def test_a_write_that_fails_inside_the_library(store, export):
    import resource

    store.commit({"a": torch.ones(1 << 20)}, step=0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises((StorageError, OSError), match=r"out\.bin.*File too large"):
            export(store, 0, "out.bin")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir() == ["store"]


@pytest.mark.filterwarnings("ignore:.*TorchScript archive:UserWarning", "ignore:.*torch.jit:DeprecationWarning")
def test_an_archive_of_torchscript(store):
    torch.jit.script(torch.nn.Linear(2, 2)).save("scripted.pt")
    with pytest.raises(FormatError, match=r"scripted\.pt is an archive of TorchScript: load it with torch\.jit\.load"):
        import_torch(store, "scripted.pt", step=0)
    assert store.steps() == []


def test_an_error_of_torch_is_not_taken_for_the_one_that_is_being_handled(store, monkeypatch):
    store.commit({"a": torch.ones(3)}, step=0)

    def odd(*_):
        raise RuntimeError("odd")

    monkeypatch.setattr(torch, "save", odd)
    for handled in (ValueError("another"), OSError("another")):
        try:
            raise handled
        except (ValueError, OSError):
            with pytest.raises(StorageError, match=r"cannot write out\.pt: odd"):
                export_torch(store, 0, "out.pt")


def test_an_export_that_is_interrupted_anywhere(store, monkeypatch):
    """torch may go on, and tell only what came of it."""
    store.commit({"a": torch.ones(1 << 20)}, step=0)

    class Interrupted(io.FileIO):
        def write(self, data):
            if next(left) == 0:
                raise KeyboardInterrupt
            return super().write(data)

    def opened(path, mode):
        return Interrupted(path, mode)

    monkeypatch.setattr(Path, "open", opened)
    for number in count():
        left = count(number, -1)
        try:
            export_torch(store, 0, "out.pt")
        except KeyboardInterrupt:
            assert os.listdir() == ["store"]
        else:
            break
    assert number > 10


def test_foreign_files(store):
    Path("text.pt").write_text("hello")
    Path("empty.pt").write_text("")
    torch.save({"a": Fraction(1, 2)}, "object.pt")
    torch.save({0: torch.ones(1)}, "numbers.pt")
    for name in ("text.pt", "empty.pt"):
        with pytest.raises(FormatError, match=name):
            import_torch(store, name, step=0)
        with pytest.raises(FormatError, match=name):
            import_safetensors(store, name, step=0)
    with pytest.raises(FormatError, match=r"fractions\.Fraction"):
        import_torch(store, "object.pt", step=0)
    with pytest.raises(InvalidArgument, match="--name"):
        import_torch(store, "numbers.pt", step=0)
    assert store.steps() == []


def test_a_model_saved_by_others(store):
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    safetensors.torch.save_model(model, "model.safetensors")
    import_safetensors(store, "model.safetensors", step=0, name="model")
    assert_same_leaves(store.checkout(0)["model"], model.state_dict())
    torch.save(model.state_dict(), "model.pt")
    import_torch(store, "model.pt", step=1, name="model")
    assert type(store.checkout(1)["model"]) is OrderedDict


def test_names_are_paths_where_they_can_be():
    assert nested({"a/b.c/0": 1, "a/b.c/1": 2, "d": 3}, "file") == {"a": {"b.c": {0: 1, 1: 2}}, "d": 3}
    assert nested({"0": 1, "007/01": 2, "a//b": 3}, "file") == {"0": 1, "007": {"01": 2}, "a": {"": {"b": 3}}}
    assert nested({"a%2Fb/%30": 1, "%(": 2, "x/%(x)": 3}, "file") == {"a/b": {"0": 1}, "%(": 2, "x": {"%(x)": 3}}
    assert nested({'a/%({"tuple":[0,1]})': 1, "a/%([1])": 2}, "file") == {"a": {(0, 1): 1, "%([1])": 2}}
    for names in (("a", "a/b"), ("a/b", "a"), ("a", "a/b/c")):
        with pytest.raises(FormatError, match="beneath"):
            nested(dict.fromkeys(names, 1), "file")


def test_an_export_can_be_imported(store):
    plain = {
        "when": [datetime(2026, 1, 2, tzinfo=UTC), timedelta(3)],
        "path": Path("a/b"),
        "some": (frozenset({1}), {2}, range(6), slice(7), 1 << 80, 8j),
        "arrays": [np.ones((2, 3), order="F"), np.array([b"x", b"yz"]), np.float32(1.5), np.zeros(2, "i4,f8")],
    }
    store.commit({"rng": ckptstore.RNGState(), "plain": plain}, step=0)
    export_torch(store, 0, "all.pt")
    import_torch(store, "all.pt", step=1)
    assert_same(store.checkout(1), store.checkout(0))
    assert not store.diff(0, 1).changes


def test_an_object_whose_class_is_not_here(store, monkeypatch):
    made = types.ModuleType("elsewhere")
    made.Thing = type("Thing", (), {"__module__": "elsewhere"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "elsewhere", made)
    torch.save({"thing": made.Thing()}, "things.pt")
    monkeypatch.delitem(sys.modules, "elsewhere")
    with pytest.raises(FormatError, match="No module named 'elsewhere': put their modules on PYTHONPATH"):
        import_torch(store, "things.pt", step=0, allow_pickle=True)
    assert store.steps() == []


def test_a_file_of_another_format(store):
    safetensors.torch.save_file({"w": torch.ones(3)}, "m.safetensors")
    with pytest.raises(FormatError, match=r"m\.safetensors is no whole .*: use import_safetensors \(--format safetens"):
        import_torch(store, "m.safetensors", step=0)
    for load in (import_torch, import_safetensors):
        with pytest.raises(FileNotFoundError, match="nofile"):
            load(store, "nofile", step=0)


def test_what_plain_torch_refuses_to_load(store):
    leaves = {
        "rng": ckptstore.RNGState(),
        "array": np.ones(3),
        "date": datetime(2026, 1, 2, tzinfo=UTC),
        "path": Path("a"),
    }
    for step, (name, leaf) in enumerate((leaves | {"generator": torch.Generator()}).items()):
        store.commit({name: leaf, "w": torch.ones(3)}, step=step)
        export_torch(store, step, f"{name}.pt")
        with pytest.raises(pickle.UnpicklingError, match="Weights only"):
            torch.load(f"{name}.pt")
        assert torch.load(f"{name}.pt", weights_only=False)["w"].equal(torch.ones(3))
        if name == "generator":
            with pytest.raises(FormatError, match="Generator, whose unpickling can run any code"):
                import_torch(store, f"{name}.pt", step=100)
        else:
            import_torch(store, f"{name}.pt", step=100 + step)
        export_torch(store, step, f"{name}.pt", paths="w", overwrite=True)
        assert torch.load(f"{name}.pt")["w"].equal(torch.ones(3))


def test_a_file_runs_no_code(store):
    class Mischief:
        def __reduce__(self):
            return os.mkdir, ("made",)

    torch.save({"a": np.array([Mischief()])}, "array.pt")
    torch.save({"a": {"b": Mischief()}}, "dict.pt")
    for name in ("array.pt", "dict.pt"):
        with pytest.raises(FormatError, match=r"mkdir|dtype|no whole file"):
            import_torch(store, name, step=0)
    assert not Path("made").exists()
