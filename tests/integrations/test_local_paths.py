from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from ckptstore.errors import InvalidArgument
from ckptstore.integrations.dcp_files import import_dcp
from ckptstore.integrations.safetensors import import_safetensors
from ckptstore.integrations.torch_save import import_torch
from ckptstore.integrations.torchsnapshot import import_torchsnapshot

IMPORTS = [import_dcp, import_torchsnapshot, import_safetensors, import_torch]


@pytest.mark.parametrize("bring", IMPORTS)
@pytest.mark.parametrize("url", ["s3://bucket/x", "gs://bucket/a b", "file:///tmp/none", Path("s3://bucket/x")])
def test_a_url_is_told_to_be_one(store, bring, url):
    with pytest.raises(InvalidArgument) as caught:
        bring(store, url, step=1)
    assert str(caught.value).startswith(f"{os.fspath(url)!r} is a URL, and imports read local files and folders: ")
    assert ("give its path without" if "file:" in str(url) else "download it first, with") in str(caught.value)
    assert store.steps() == []


def test_a_folder_that_is_named_like_a_url(store, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("s3:").mkdir()
    torch.save({"w": torch.ones(3)}, "s3:/x.pt")
    import_torch(store, "s3:/x.pt", step=1)
    assert store.read(1, "w").equal(torch.ones(3))
