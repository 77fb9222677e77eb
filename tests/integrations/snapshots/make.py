"""Makes the snapshots beside it, with torchsnapshot 0.1.0 (the extra `bench`):

python tests/integrations/snapshots/make.py tests/integrations/snapshots
"""

from __future__ import annotations

import runpy
import shutil
import sys
from pathlib import Path

import torch.distributed as dist
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import init_from_local_shards
from torch.distributed._shard.sharded_tensor.shard import Shard
from torch.multiprocessing.spawn import spawn
from torchsnapshot import Snapshot, StateDict
from torchsnapshot.knobs import override_max_chunk_size_bytes

STATES = runpy.run_path(str(Path(__file__).with_name("states.py")))
RANKS = 2


def make_one(folder: Path) -> None:
    app_state = {}
    for name, values in STATES["one_rank"]().items():
        app_state[name] = StateDict()
        app_state[name].data = values
    with override_max_chunk_size_bytes(100):
        Snapshot.take(str(folder), app_state)


def make_of_ranks(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}.group", rank=rank, world_size=RANKS)
    state = STATES["of_rank"](rank)
    whole = STATES["sharded"]()
    rows = whole.split(4)[rank]
    place = ShardMetadata([4 * rank, 0], list(rows.shape), f"rank:{rank}/cpu")
    table = init_from_local_shards([Shard(rows, place)], *whole.shape)
    app_state = {name: StateDict(values) for name, values in state.items()}
    app_state["table"] = StateDict(w=table, empty={})
    Snapshot.take(str(folder), app_state, replicated=["same/**", "own/mixed/0"])
    dist.destroy_process_group()


if __name__ == "__main__":
    data = Path(sys.argv[1]).absolute()
    for name in ("one", "ranks"):
        shutil.rmtree(data / name, ignore_errors=True)
    make_one(data / "one")
    spawn(make_of_ranks, (data / "ranks",), RANKS)
    (data / "ranks.group").unlink(missing_ok=True)
