"""Pages for those who come from elsewhere: both sides of every row run, the left one where its library is there."""

import copy
import gc
import importlib
import re
import shlex
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner

import ckptstore
from ckptstore.cli import cli
from ckptstore.integrations.dcp import StoreReader, StoreWriter
from ckptstore.integrations.safetensors import export_safetensors, import_safetensors
from ckptstore.integrations.torch_save import export_torch, import_torch

DOCS = Path(__file__).parents[2] / "docs"
ROW = re.compile(r"^\| `([^`]+)` \| `([^`]+)` \|$", re.MULTILINE)
NEWER = "get_state_dict_for_key"
OURS = {
    "ckptstore": ckptstore,
    "export_safetensors": export_safetensors,
    "export_torch": export_torch,
    "import_safetensors": import_safetensors,
    "import_torch": import_torch,
}
THEIRS = {
    "torch.distributed.checkpoint.state_dict": ["get_state_dict", "set_state_dict"],
    "torch.distributed.checkpoint.format_utils": ["dcp_to_torch_save", "torch_save_to_dcp"],
    "torch.distributed.checkpoint._fsspec_filesystem": ["FsspecReader", "FsspecWriter"],
    "torch.distributed.checkpoint.hf_storage": ["HuggingFaceStorageReader", "HuggingFaceStorageWriter"],
}

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, about what other libraries do


def rows(page):
    found = ROW.findall(page)
    assert len(found) == len(re.findall(r"^\|", page, re.MULTILINE)) - 2 * page.count("|---|") > 10
    return found


def run_examples(page):
    """On another store, since the page's rows commit the same steps."""
    for line in re.findall(r"^\$ ckptstore (.*)$", page, re.MULTILINE):
        verb, _, *rest = shlex.split(line)
        result = CliRunner().invoke(cli, [verb, "new", *rest])
        assert result.exit_code == 0, result.output


def given(training):
    training["train_step"]()
    model = training["model"]
    half = copy.deepcopy(model).bfloat16()
    weight, meta = torch.zeros_like(model.weight), copy.deepcopy(model).to("meta")
    return {"model": model, "optimizer": training["optimizer"], "weight": weight, "half": half, "meta": meta}


def run_ours(code, names):
    weight = names["weight"].zero_()
    exec(code, names)
    assert "out=weight" not in code or weight.equal(names["model"].weight)


def test_from_dcp(training):
    page = (DOCS / "from-dcp.md").read_text()
    both = {"state": {}, "dcp": importlib.import_module("torch.distributed.checkpoint")}
    theirs = given(training) | both
    for module, names in THEIRS.items():
        theirs |= {name: getattr(importlib.import_module(module), name) for name in names}
    ours = given(training) | OURS | both | {"store": ckptstore.open("ckpts")}
    ours |= {"StoreReader": StoreReader, "StoreWriter": StoreWriter}
    for left, right in rows(page):
        exec(left, theirs)
        run_ours(right, ours)
    for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        exec(block, ours)
    assert ours["meta"].weight.equal(ours["model"].weight) and ours["meta"].weight.requires_grad
    assert ours["weights"]["weight"].equal(ours["loaded"]["model"]["weight"])
    run_examples(page)
    with ckptstore.open("new") as store:
        assert store.read(1, "model/weight").equal(ours["loaded"]["model"]["weight"])


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside torchsnapshot"])
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # torchsnapshot leaves an event loop open
def test_from_torchsnapshot(training, beside):
    page = (DOCS / "from-torchsnapshot.md").read_text()
    theirs = given(training) | {"torchsnapshot": pytest.importorskip("torchsnapshot") if beside else None}
    ours = given(training) | OURS | {"store": ckptstore.open("ckpts")}
    for left, right in rows(page):
        if beside and NEWER not in left:
            exec(left, theirs)
        run_ours(right, ours)
    if beside:
        gc.collect()
        run_examples(page)
        with ckptstore.open("new") as store:
            assert store.read(1, "model/weight").equal(theirs["model"].weight)
