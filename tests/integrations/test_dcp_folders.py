from __future__ import annotations

import pytest

from ckptstore.integrations.dcp_files import import_dcp
from tests.integrations.rank_child import tensors


@pytest.mark.parametrize("form", ["TORCH_SAVE", "SAFETENSORS"])
def test_what_ranks_saved_with_dcp_comes_in(crew, store, tmp_path, form):
    crew.do("save_with_files", 4, folder=str(tmp_path / "ranks"), form=form)
    import_dcp(store, tmp_path / "ranks", step=1)
    crew.do("save", 2, place=store.url, step=2, layout="columns", seed=4, same=False)
    found = store.checkout(1)["model"]
    assert [name for name, tensor in tensors(4).items() if not tensor.equal(found[name])] == []
    assert store.find(2).new_bytes < store.find(1).new_bytes / 10
