from __future__ import annotations

import pytest
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import DeviceMesh

import ckptstore
from ckptstore.errors import InvalidArgument, RankFailed
from ckptstore.operations.ranks.ranks import Ranks


@pytest.fixture
def alone(tmp_path):
    """A default group of this process."""
    dist.init_process_group("gloo", store=FileStore(str(tmp_path / "rendezvous"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_who_has_left_a_group_says_nothing_to_another_one(alone):
    ranks = Ranks(0, 2, dist.new_group([0]))
    ranks.leave()
    ranks.leave()
    with pytest.raises(RankFailed, match="has left"):
        ranks.agree(lambda: 1, lambda messages: [0] * len(messages))
    with pytest.raises(RankFailed, match="has left"):
        ranks.exchange(dict, {}, {1: 1})
    assert dist.is_initialized()


def test_what_is_no_process_group(alone, tmp_path):
    gone = dist.new_group([0])
    dist.destroy_process_group(gone)
    for group, message in [
        (DeviceMesh("cpu", [0]), r"process_group is a DeviceMesh, no process group: give mesh\.get_group\(\)"),
        (DeviceMesh("cpu", [[0]]), r"is a DeviceMesh, .*, with the name of a dim where it has several$"),
        ([0], "is a list, no process group: give what torch.distributed.new_group makes, or none"),
        ("tp", "is a str, no process group"),
        (dist.GroupMember.NON_GROUP_MEMBER, "this process is not in the process group"),
        (gone, "the process group was destroyed"),
    ]:
        with ckptstore.open(tmp_path / "store") as store:
            for way in (store.commit, store.commit_async):
                with pytest.raises(InvalidArgument, match=message):
                    way({"x": 1}, step=1, process_group=group)
            with pytest.raises(InvalidArgument, match=message):
                ckptstore.CheckpointManager(store, save_interval=1, process_group=group)
            assert store.steps() == []
