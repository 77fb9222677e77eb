"""Memory for copies of one device's tensors, kept from one commit to the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ckptstore.state.lanes import Lane

_SLAB = 32 << 20
_SMALL = 1 << 20
_ALIGN = 512


class Shadow(NamedTuple):
    """The kept bytes of one leaf, and whether they are pinned memory of the host instead of the device's own."""

    content: Tensor
    on_host: bool


class Shadows:
    """By path: on the device as long as that leaves training a margin, else in pinned memory."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._held: dict[str, Shadow] = {}
        self._there, self._here = _Slabs(lane.allocate), _Slabs(lane.pinned)

    def take(self, sizes: Mapping[str, int]) -> tuple[dict[str, Shadow], set[str]]:
        """One of each size, and the paths of those that do not hold what they held last time. Others are freed."""
        room = self._lane.spare_bytes()
        kept = {path: self._held[path] for path, size in sizes.items() if self._fits(path, size, room)}
        self._held = kept
        fresh = [path for path in sizes if path not in kept]
        for path in fresh:
            kept[path] = self._new(sizes[path], room)
            room -= 0 if kept[path].on_host else sizes[path]
        return kept, set(fresh)

    def _fits(self, path: str, size: int, room: int) -> bool:
        held = self._held.get(path)
        return held is not None and held.content.nbytes == size and (room >= 0 or held.on_host)

    def _new(self, size: int, room: int) -> Shadow:
        if size <= room:
            try:
                return Shadow(self._there.cut(size), on_host=False)
            except torch.OutOfMemoryError:
                pass  # what is spare may lie in pieces
        return Shadow(self._here.cut(size), on_host=True)


class _Slabs:
    """Small leaves share memory: taking it from a device, or pinning it, is slow."""

    def __init__(self, allocate: Callable[[int], Tensor]) -> None:
        self._allocate = allocate
        self._free: Tensor | None = None

    def cut(self, size: int) -> Tensor:
        if size >= _SMALL:
            return self._allocate(size)
        if self._free is None or len(self._free) < size:
            self._free = self._allocate(_SLAB)
        cut, self._free = self._free[:size], self._free[size + -size % _ALIGN :]
        return cut
