"""Memory for copies of one device's tensors, kept from one commit to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from ckptstore.state.devices.lanes import Lane

_ALIGN = 512
_SHARED = 32 << 20
"""Leaves of fewer bytes share memory of the device, and are kept together or not at all: it is freed as a whole."""


class Shadow(NamedTuple):
    """The kept bytes of one leaf, and whether they are pinned memory of the host instead of the device's own."""

    content: Tensor
    on_host: bool


class Shadows:
    """By path: on the device as long as that leaves training a margin, else in pinned memory until it does."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._held: dict[str, Shadow] = {}
        self._settled: Mapping[str, int] = {}
        self._there = _Slabs(lane.allocate, 512 << 20, below=_SHARED)
        self._here = _Slabs(lane.lasting, 256 << 20, below=64 << 20)
        self._in_pieces = False

    def take(self, sizes: Mapping[str, int]) -> tuple[dict[str, Shadow], set[str]]:
        """One of each size, and the paths of those that do not hold what they held last time. Others are freed."""
        short = self._lane.is_short()
        if not short and sizes == self._settled:
            return self._held, set()
        self._settled = {}
        kept = {path: self._held[path] for path, size in sizes.items() if self._fits(path, size, short=short)}
        if any(map(_is_shared, (shadow for path, shadow in self._held.items() if path not in kept))):
            kept = {path: shadow for path, shadow in kept.items() if not _is_shared(shadow)}
            self._there.drop()
            self._in_pieces = False
        self._held = kept
        wanting = [path for path in sizes if path not in kept or kept[path].on_host]
        fresh = self._made({path: sizes[path] for path in wanting}, 0 if short else self._lane.spare_bytes())
        kept |= fresh
        if not any(shadow.on_host for shadow in kept.values()):
            self._settled = sizes
        return kept, set(fresh)

    def _made(self, sizes: Mapping[str, int], room: int) -> dict[str, Shadow]:
        """New ones: on the device what there is room for, on the host the rest, unless it is there already."""
        with torch.inference_mode(mode=False):  # or nobody could write there outside of it
            there = self._on_device(sizes, room)
            rest = {path: size for path, size in sizes.items() if path not in there and path not in self._held}
            here = {path: Shadow(content, on_host=True) for path, content in self._here.cut_all(rest)}
        return there | here

    def _fits(self, path: str, size: int, *, short: bool) -> bool:
        held = self._held.get(path)
        return held is not None and held.content.nbytes == size and (held.on_host or not short)

    def _on_device(self, sizes: Mapping[str, int], room: int) -> dict[str, Shadow]:
        """As many as there is room for."""
        taken: dict[str, int] = {}
        for path, size in sizes.items():
            if size < room:
                taken[path] = size
                room -= size
        found: dict[str, Shadow] = {}
        try:
            for path, content in self._there.cut_all({} if self._in_pieces else taken):
                found[path] = Shadow(content, on_host=False)
        except torch.OutOfMemoryError:  # what is spare lies in pieces, and each look for more is slow
            self._in_pieces = True
        return found


def _is_shared(shadow: Shadow) -> bool:
    return not shadow.on_host and shadow.content.nbytes < _SHARED


class _Slabs:
    """Leaves `below` some bytes share memory, at most a `slab` at a time: to take it, or to pin it, is slow."""

    def __init__(self, allocate: Callable[[int], Tensor], slab: int, *, below: int) -> None:
        self._allocate, self._slab, self._below = allocate, slab, below
        self._free: Tensor | None = None

    def cut_all(self, sizes: Mapping[str, int]) -> Iterator[tuple[str, Tensor]]:
        """Memory for each path, one after the other."""
        left = sum(size + _ALIGN for size in sizes.values() if size < self._below)
        for path, size in sizes.items():
            yield path, self._cut(size, left)
            left -= size + _ALIGN if size < self._below else 0

    def drop(self) -> None:
        """Keep nothing of what is left over, which would keep all of the memory that it was cut from."""
        self._free = None

    def _cut(self, size: int, left: int) -> Tensor:
        """Memory for one; `left` is what it and those to come share."""
        if size >= self._below:
            return self._allocate(size)
        if self._free is None or len(self._free) < size:
            self._free = self._new(size, left)
        cut, self._free = self._free[:size], self._free[size + -size % _ALIGN :]
        return cut

    def _new(self, size: int, left: int) -> Tensor:
        """A slab, or, where what is free lies in pieces, one of half as many bytes and so on, from here on."""
        while (slab := min(self._slab, left)) > size:
            try:
                return self._allocate(slab)
            except torch.OutOfMemoryError:
                self._slab = slab // 2
        return self._allocate(size)
