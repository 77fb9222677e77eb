"""Tensors as torch_xla lays them out on four devices of one process."""

from __future__ import annotations

import numpy as np
import torch
import torch_xla
import torch_xla.distributed.spmd as xs

LAYOUTS = {
    "unmarked": None,
    "replicated": ((4, 1), (None, None)),
    "rows": ((4, 1), (0, 1)),
    "columns": ((1, 4), (0, 1)),
    "blocks": ((2, 2), (0, 1)),
    "blocks turned": ((2, 2), (1, 0)),
}
"""Name → shape of the mesh, and which of its dims cuts which dim of a tensor."""

LOST = {"partly replicated": ((2, 2), (0, None))}
"""What `SPMDSavePlanner` does not save."""


def tensors(seed):
    """The whole state; 301, 67, 5 and 3 are not multiples of 4, and of 5 rows the last device has none."""
    random = torch.Generator().manual_seed(seed)
    return {
        "weight": torch.randn(301, 67, generator=random),
        "other": torch.randn(301, 67, generator=random),
        "embedding": torch.randn(128, 64, generator=random).to(torch.bfloat16),
        "counts": torch.randint(0, 1 << 60, (60, 40), generator=random),
        "short": torch.randn(5, 3, generator=random),
        "bias": torch.randn(67, generator=random),
        "scale": torch.randn((), generator=random),
        "empty": torch.empty(0, 4),
    }


def laid_out(state, layout):
    """Every tensor on the devices; those that have two dims as the layout says."""
    there = {name: tensor.to(torch_xla.device()) for name, tensor in state.items()}
    sharding = (LAYOUTS | LOST)[layout]
    if sharding is not None:
        shape, spec = sharding
        mesh = xs.Mesh(np.arange(4), shape, ("x", "y"))
        for tensor in there.values():
            if tensor.ndim == 2 and tensor.numel():
                xs.mark_sharding(tensor, mesh, spec)
    return there
