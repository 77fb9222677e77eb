"""Makes the DCP checkpoint `ranks` beside it, on four ranks that form a mesh of 2 x 2:

python tests/integrations/sharded/make.py tests/integrations/sharded
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.multiprocessing.spawn import spawn

PLACEMENTS = {
    "rows": (Replicate(), Shard(0)),
    "columns": (Shard(1), Replicate()),
    "blocks": (Shard(0), Shard(1)),
    "few": (Shard(0), Shard(0)),
    "strided": (Shard(0), Shard(0)),
    "replicated": (Replicate(), Replicate()),
}


def state() -> dict[str, Any]:
    """The global tensors, and what is no tensor."""
    return {
        "model": {
            "rows": torch.arange(35.0).view(7, 5),
            "columns": torch.arange(35, dtype=torch.int64).view(7, 5).to(torch.bfloat16),
            "blocks": torch.arange(7 * 5 * 3, dtype=torch.int16).view(7, 5, 3),
            "few": torch.arange(2.0, dtype=torch.float64),
            "strided": torch.arange(33 * 40, dtype=torch.uint8).view(33, 40),
            "replicated": torch.full((3, 3), 1j),
            "plain": torch.tensor(7),
        },
        "optim": {"groups": [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0, 1]}], "none": None},
    }


def main(rank: int, folder: Path) -> None:
    dist.init_process_group("gloo", init_method=f"file://{folder}.group", rank=rank, world_size=4)
    mesh = init_device_mesh("cpu", (2, 2))
    made = state()
    model = made["model"]
    placed = {name: distribute_tensor(model[name], mesh, how, src_data_rank=None) for name, how in PLACEMENTS.items()}
    made["model"] = model | placed
    save(made, storage_writer=FileSystemWriter(folder))
    dist.destroy_process_group()


if __name__ == "__main__":
    place = Path(sys.argv[1]).absolute() / "ranks"
    shutil.rmtree(place, ignore_errors=True)
    spawn(main, (place,), 4)
    Path(f"{place}.group").unlink(missing_ok=True)
