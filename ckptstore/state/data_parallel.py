"""What DistributedDataParallel makes the same on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet

import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ckptstore.state.paths import join, segment


def broadcast_buffers(owners: Mapping[str, object], among: AbstractSet[int]) -> frozenset[str]:
    """The paths of buffers that the first rank gives all others before each forward pass, of modules by their paths.

    Only of modules whose process group has all the ranks `among`, by their numbers in the default group.
    """
    modules = ((path, owner) for path, owner in owners.items() if isinstance(owner, nn.Module) and among)
    return frozenset(join(path, segment(name)) for path, module in modules for name in _names(module, among))


def _names(module: nn.Module, among: AbstractSet[int]) -> Iterator[str]:
    for prefix, inner in module.named_modules():
        if isinstance(inner, DistributedDataParallel) and inner.broadcast_buffers:
            if among - set(dist.get_process_group_ranks(inner.process_group)):
                continue
            for name, _ in inner.module.named_buffers(remove_duplicate=False):
                if name not in inner.parameters_to_ignore:
                    yield ".".join(filter(None, (prefix, "module", name)))
