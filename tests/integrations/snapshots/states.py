"""What the snapshots beside it hold."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool),
]


def bits(dtype: torch.dtype) -> torch.Tensor:
    """Six rows of two, whose bytes differ where the dtype lets them."""
    count = 12 * dtype.itemsize
    plain = torch.arange(count, dtype=torch.int64).remainder(2 if dtype is torch.bool else 251).to(torch.uint8)
    return plain.view(dtype).view(6, 2)


def one_rank() -> dict[str, Any]:
    return {
        "model": OrderedDict({f"w.{str(dtype).removeprefix('torch.')}": bits(dtype) for dtype in DTYPES}),
        "a/b %": {
            "scalar": torch.tensor(3.5),
            "turned": torch.arange(6.0).view(2, 3).t(),
            "large": torch.arange(40.0).view(20, 2),
            "plain": {"int": -3, "big": 1 << 80, "float": 0.1, "nan": float("nan"), "str": "x/y\né", "bytes": b"\0ab"},
            "flags": [True, False, None, (1, 2)],
            "deep": [[{"x/y": torch.ones(2)}, []], {}],
            "keys": OrderedDict({"2": 1, 3: {4: torch.zeros(1)}}),
        },
    }


def of_rank(rank: int) -> dict[str, Any]:
    """Of one of two ranks, without the sharded tensor."""
    return {
        "same": {"w": torch.arange(12.0), "step": 7, "name": "run"},
        "own": {"w": torch.full((3,), float(rank)), "rank": rank, "mixed": [torch.arange(3.0), rank]},
    }


def sharded() -> torch.Tensor:
    return torch.arange(28.0).view(7, 4)
