from __future__ import annotations

from enum import Enum
from fractions import Fraction
from functools import partial
from math import inf, nan

import click
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import ckptstore
from ckptstore.chunkstore import ChunkStore
from ckptstore.cli import cli
from ckptstore.cli.reading import index_of
from ckptstore.store import Store
from ckptstore.testing.audit import site_of
from ckptstore.testing.faults import Recording

UINT4: torch.dtype = getattr(torch, "uint4")  # noqa: B009 - torch has no type for it
OPTION = next(option for option in cli.commands["read"].params if option.name == "index")
RECORD = np.dtype([("a", "<f4"), ("b", ">i2", (2,)), ("c", "S3")])


class Colour(Enum):
    RED = 1


Odd = Enum("Odd", {"\x1b[1m": 1})


def parsed(text: str):
    return index_of(click.Context(cli), OPTION, text)


@pytest.fixture
def kept(tmp_path):
    """Commits a state, and tells where."""

    def keep(state, **options):
        with ckptstore.open(tmp_path / "store", chunk_bytes=4096) as store:
            store.commit(state, step=0, **options)
        return tmp_path / "store"

    return keep


# leaves


def test_an_array_is_shown_as_torch_prints_it(url, output, asked):
    weight = torch.arange(3000, dtype=torch.float32).view(50, 60) + 100
    assert output("read", url, "best", "model/emb.weight") == f"float32 [50, 60]\n{weight}\n"
    assert output("read", url, 0, "optim/numpy") == "numpy <i8 [4]\narray([0, 1, 2, 3])\n"
    assert output("read", url, 100, "model/layers/0") == "int64 []\ntensor(100)\n"
    document = asked("read", url, "main@100", "model/emb.weight")
    assert document == {
        "path": "model/emb.weight",
        "kind": "tensor",
        "library": "torch",
        "dtype": "float32",
        "shape": [50, 60],
        "bytes": 12000,
        "values": weight.tolist(),
    }
    assert asked("read", url, 100, "model/layers/0")["values"] == 100


@pytest.mark.parametrize(
    ("leaf", "text", "values"),
    [
        (torch.tensor([1.5, nan, -inf]).bfloat16(), "bfloat16 [3]\ntensor([1.5", [1.5, "NaN", "-Infinity"]),
        (torch.zeros(0, 4), "float32 [0, 4]\ntensor([], size=(0, 4))", []),
        (torch.zeros(2, 0), "float32 [2, 0]\ntensor([], size=(2, 0))", [[], []]),
        (torch.tensor([True]), "bool [1]\ntensor([True])", [True]),
        (torch.tensor(1 + 2j), "complex64 []\ntensor(1.+2.j)", "(1+2j)"),
        (torch.ones(2).to(torch.float8_e5m2), "float8_e5m2 [2]\ntensor([1., 1.]", [1.0, 1.0]),
        (torch.tensor([7, 8], dtype=torch.uint8).view(UINT4), "uint4 [2]\ntensor([7, 8]", [7, 8]),
        (torch.tensor([7], dtype=torch.uint16).view(torch.bits16), "bits16 [1]\ntensor([7]", [7]),
        (torch.nn.Parameter(torch.ones(1)), "float32 [1]\nParameter containing:\ntensor([1.]", [1.0]),
        (np.array([[0.5]], "f2"), "numpy <f2 [1, 1]\narray([[0.5]]", [[0.5]]),
        (np.array("\x1b[1m"), "numpy <U4 []\narray('\\x1b[1m'", "\x1b[1m"),
        (np.zeros(1, RECORD), 'numpy {"names"', [[0.0, [0, 0], "b''"]]),
        (np.array([0.5], "f16"), "numpy <f16 [1]\narray([0.5]", ["0.5"]),
        (np.array(["2020-02-29"], "M8[D]"), "numpy <M8[D] [1]\narray(['2020-02-29']", ["2020-02-29"]),
        (np.array(["NaT", 1], "m8[ns]"), "numpy <m8[ns] [2]\narray([", ["NaT", 1]),
    ],
    ids=lambda it: str(getattr(it, "dtype", "")),
)
def test_arrays_of_every_kind(kept, run, asked, leaf, text, values):
    url = kept({"x": leaf})
    assert run("read", url, 0, "x").stdout.startswith(text)
    assert asked("read", url, 0, "x")["values"] == values


def test_what_is_printed_of_a_large_array_is_little(kept, output):
    assert len(output("read", kept({"x": torch.rand(300, 300, 10)}), 0, "x")) < 4000


def test_plain_values_are_shown_as_ls_shows_them(kept, output, asked, run):
    state = {"lr": 0.1, "betas": (0.9, 0.999), "s": "é\n", "f": Fraction(1, 3), "red": Colour.RED, "none": None}
    url = kept(state)
    assert [output("read", url, 0, name) for name in state] == [
        *("0.1\n", "(0.9, 0.999)\n", "'é\\n'\n", "Fraction(1, 3)\n", "Colour.RED\n", "None\n"),
    ]
    for leaf in asked("ls", url, 0):
        assert asked("read", url, 0, leaf["path"]) == {name: it for name, it in leaf.items() if name != "tied_to"}


def test_nothing_reaches_the_terminal_unescaped(kept, output):
    assert output("read", kept({"odd": Odd["\x1b[1m"]}), 0, "odd") == "Odd.\\x1b[1m\n"


def test_a_large_plain_value_is_whole(kept, run, asked):
    long = list(range(9000))
    url = kept({"long": long})
    assert asked("ls", url, 0)[0]["value"] is None
    assert run("read", url, 0, "long").stdout == f"{long}\n"
    assert asked("read", url, 0, "long")["value"] == str(long)


@pytest.mark.parametrize("size", [1, 9000])
def test_pickles_are_refused(kept, run, size):
    url = kept({"x": {"p": partial(int, "1" * size), "q": 1}}, allow_pickle=True)
    for path in ("x/p", "x"):
        result = run("read", url, 0, path, code=1)
        assert result.stdout == "" and "'x/p' is a pickle" in result.stderr
    assert run("read", url, 0, "x/q").stdout == "1\n"


# containers


def test_all_beneath_a_container(url, output, asked, run):
    assert output("read", url, 0, "optim").splitlines() == [
        *("optim/lr: 0.001", "optim/betas: (0.9, 0.999)", "optim/numpy: numpy <i8 [4]", "array([0, 1, 2, 3])"),
    ]
    document = asked("read", url, 0, "optim")
    leaves = document.pop("leaves")
    keys = ["'lr'", "'betas'", "'numpy'"]
    assert document == {"path": "optim", "kind": "dict", "type": None, "keys": keys, "attributes": {}}
    assert leaves == [asked("read", url, 0, f"optim/{name}") for name in ("lr", "betas", "numpy")]
    everything = [leaf["path"] for leaf in asked("read", url, 0, "")["leaves"]]
    assert everything == [leaf["path"] for leaf in asked("ls", url, 0)]
    assert "é\\n: 0" in run("read", url, 0, "").stdout


def test_all_that_a_glob_selects(url, output, asked, run):
    assert output("read", url, 0, "optim/*r").splitlines()[0] == "optim/lr: 0.001"
    found = asked("read", url, 0, "**/*.weight", "--index", "0, :2")
    assert found["path"] == "**/*.weight"
    assert {leaf["path"]: leaf["values"] for leaf in found["leaves"]} == {
        "model/emb.weight": [0.0, 1.0],
        "model/head.weight": [0.0, 1.0],
    }
    assert "optim/lr' is no array" in run("read", url, 0, "optim/*", "--index", "0", code=1).stderr
    assert "no path 'optm/*'; nearest: optim" in run("read", url, 0, "optm/*", code=1).stderr


def test_what_is_called_like_a_glob_is_none(kept, output):
    url = kept({"a*": {"x": 1}, "ab": {"x": 2}, "[a]": 3})
    assert output("read", url, 0, "a*") == "a*/x: 1\n"
    assert output("read", url, 0, "[a]") == "3\n"


def test_an_empty_container(kept, run, asked):
    url = kept({"e": {}})
    result = run("read", url, 0, "e")
    assert (result.stdout, result.stderr) == ("", "'e' is an empty dict\n")
    assert asked("read", url, 0, "e")["leaves"] == []


def test_parts_of_a_sparse_tensor(kept, output, asked):
    url = kept({"s": torch.eye(2).to_sparse()})
    assert "s/values: float32 [2]\ntensor([1., 1.])" in output("read", url, 0, "s")
    assert asked("read", url, 0, "s")["kind"] == "sparse_coo"


# index


@pytest.mark.parametrize(
    ("index", "shape"),
    [("3", [60]), ("-1, 2", []), ("0:8", [8, 60]), (" 0 : 8 , 3", [8]), ("::7, ...", [8, 60]), ("..., 5:", [50, 55])],
)
def test_an_index_selects(url, run, asked, index, shape):
    weight = torch.arange(3000, dtype=torch.float32).view(50, 60)
    part = weight[eval(f"np.s_[{index}]")]
    document = asked("read", url, 0, "model/emb.weight", "--index", index)
    assert (document["shape"], document["values"]) == (shape, part.tolist())
    assert document["bytes"] == part.nbytes
    assert run("read", url, 0, "model/emb.weight", "--index", index).stdout == f"float32 {shape}\n{part!r}\n"


def test_only_the_chunks_that_hold_it_are_read(kept, run, monkeypatch):
    weight = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (64, 4096), np.uint8))
    url = kept({"w": weight, "other": torch.rand(9000)})
    parts = site_of(url).parts()
    recording = Recording(parts.storage)
    store = Store(ChunkStore(recording, parts.catalog, parts.config), "main")
    monkeypatch.setattr("ckptstore.store.open_store", lambda *arguments, **options: store)
    for index, chunks in (("8:16", 8), ("-1, 7", 1), ("9:9", 0)):
        before = recording.read
        run("read", url, 0, "w", "--index", index)
        assert recording.read - before == chunks * 4096


@pytest.mark.parametrize("index", ["...", "1:3"])
def test_many_leaves_are_read_together(kept, asked, monkeypatch, index):
    url = kept({"m": {f"t{n}": torch.full((100,), float(n)) for n in range(20)}})
    parts = site_of(url).parts()
    recording = Recording(parts.storage)
    monkeypatch.setattr("ckptstore.cli.reading._TOGETHER", 8)
    store = Store(ChunkStore(recording, parts.catalog, parts.config), "main")
    monkeypatch.setattr("ckptstore.store.open_store", lambda *arguments, **options: store)
    leaves = asked("read", url, 0, "m", "--index", index)["leaves"]
    count = 100 if index == "..." else 2
    assert {leaf["path"]: leaf["values"] for leaf in leaves} == {f"m/t{n}": [float(n)] * count for n in range(20)}
    assert recording.operations["get_ranges"] == 3


BOUND = st.none() | st.integers(-99, 99)
SLICES = st.builds(slice, BOUND, BOUND, st.none() | st.integers(1, 99))


@given(st.lists(st.integers(-99, 99) | SLICES, min_size=1, max_size=5), st.none() | st.integers(0, 5))
def test_an_index_is_read_as_numpy_reads_it(items, dots):
    if dots is not None:
        items.insert(dots, ...)
    texts = [
        ":".join("" if it is None else str(it) for it in (item.start, item.stop, item.step))
        if isinstance(item, slice)
        else "..."
        if item is ...
        else str(item)
        for item in items
    ]
    assert parsed(", ".join(texts)) == tuple(items) == eval(f"np.s_[{','.join(texts)},]")


@pytest.mark.parametrize(
    ("index", "wrong"),
    [
        ("", "'' is no int"),
        ("1,,2", "'' is no int"),
        ("3,", "'' is no int"),
        ("1.5", "'1.5' is no int"),
        ("True", "'True' is no int"),
        ("None", "'None' is no int"),
        ("0:1:2:3", "'0:1:2:3' is no int"),
        ("0, [1]", "'[1]' is no int"),
        ("__import__('os')", "no int"),
        ("1_0", "'1_0' is no int"),
        ("٣", "'٣' is no int"),
        ("9" * 5000, "is no int"),
        ("0, ::-1", "'::-1' has the step -1: give 1 or more"),
        ("::0", "'::0' has the step 0"),
        ("..., 0, ...", "'..., 0, ...' has more than one ..."),
    ],
)
def test_what_is_no_index_is_wrong_usage(url, run, index, wrong):
    result = run("read", url, 0, "model/emb.weight", "--index", index, code=2)
    assert result.stdout == "" and "Usage: " in result.stderr and wrong in " ".join(result.stderr.split())
    with pytest.raises(click.BadParameter):
        parsed(index)


@pytest.mark.parametrize(
    ("path", "index", "advice"),
    [
        ("model/emb.weight", "50", "index 50 is out of range for dim 0 of extent 50"),
        ("model/emb.weight", "0, 0, 0", "has more entries than the 2 dims"),
        ("model/layers/0", "0", "has more entries than the 0 dims"),
        ("optim/lr", "0", "'optim/lr' is no array: --index is for those"),
        ("optim", "...", "'optim/lr' is no array: --index is for those"),
        ("nothing", "0", "no path 'nothing'"),
    ],
)
def test_an_index_that_does_not_fit(url, run, path, index, advice):
    result = run("read", url, 0, path, "--index", index, code=1)
    assert result.stdout == "" and advice in result.stderr
