from __future__ import annotations

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from ckptstore.errors import RankFailed
from ckptstore.operations.ranks.ranks import Ranks


def test_who_has_left_a_group_says_nothing_to_another_one(tmp_path):
    dist.init_process_group("gloo", store=FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    try:
        ranks = Ranks(0, 2, dist.new_group([0]))
        ranks.leave()
        ranks.leave()
        with pytest.raises(RankFailed, match="has left"):
            ranks.agree(lambda: 1, lambda told: [0] * len(told))
        with pytest.raises(RankFailed, match="has left"):
            ranks.exchange(dict, {}, {1: 1})
        assert dist.is_initialized()
    finally:
        dist.destroy_process_group()
