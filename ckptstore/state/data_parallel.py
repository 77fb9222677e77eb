"""What DistributedDataParallel makes the same on all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ckptstore.state.paths import join, segment


def broadcast_buffers(owners: Mapping[str, object]) -> frozenset[str]:
    """The paths of buffers that the first rank gives all others before each forward pass, of modules by their paths."""
    modules = ((path, owner) for path, owner in owners.items() if isinstance(owner, nn.Module))
    return frozenset(join(path, segment(name)) for path, module in modules for name in _names(module))


def _names(module: nn.Module) -> Iterator[str]:
    for prefix, inner in module.named_modules():
        if isinstance(inner, DistributedDataParallel) and inner.broadcast_buffers:
            found = (name for name, _ in inner.module.named_buffers() if name not in inner.parameters_to_ignore)
            yield from (".".join(filter(None, (prefix, "module", name))) for name in found)
