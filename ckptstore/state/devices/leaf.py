"""Leaves whose bytes lie on a device, or come from there."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable, Iterator
from itertools import accumulate
from math import prod
from typing import NamedTuple

import numpy as np
from torch import Tensor

from ckptstore.format.grid import Index, extents
from ckptstore.state.devices.lanes import Lane, Mark
from ckptstore.state.devices.looks import Look
from ckptstore.state.devices.prints import Span
from ckptstore.state.devices.shadows import Shadow
from ckptstore.state.tensors import TensorLeaf

_AHEAD = 32 << 20
"""Bytes on their way to the host while earlier ones are looked at there."""
_TOGETHER = 1 << 20
"""Bytes of small ranges that share memory there and a mark: making both takes longer than such a range does."""

_ALIGN = 64
"""So that whoever looks at numbers finds them where they may lie."""

Wanted = tuple["DeviceLeaf", Span]


class DeviceLeaf(TensorLeaf, frozen=True, eq=False):
    """A leaf whose bytes are in a shadow; `tensor` only has its form, and has no memory.

    Attributes:
        path: its own.
        shadow: the bytes, once `ready` has come.
        ready: says so.
        lane: the way to them.
        look: the device's fingerprints of them.
        live: where the tensor lay.
    """

    path: str
    shadow: Shadow
    ready: Mark
    lane: Lane
    look: Look
    live: Hashable

    def digests(self) -> dict[Span, bytes]:
        """What the store calls ranges of these very bytes, as far as is known, to be added to. Waits for the device."""
        return self.look.digests()[self.path]

    def place(self) -> Hashable:
        return self.live

    def box(self, start: Index, stop: Index) -> memoryview:
        hull = self._hull(start, stop)
        if hull[0] == hull[1]:
            return memoryview(b"")
        content = next(bring_all([(self, hull)]))
        if len(content) == self._size(start, stop):
            return content
        region = np.ndarray(extents(start, stop), f"V{self.itemsize}", content, strides=self._strides())
        return np.ascontiguousarray(region).reshape(-1).view(np.uint8).data

    def span(self, start: Index, stop: Index) -> Span | None:
        """The range of its bytes that is a box, if one is."""
        first, last = self._hull(start, stop)
        return (first, last) if last - first == self._size(start, stop) else None

    def _hull(self, start: Index, stop: Index) -> Span:
        """The smallest range of its bytes that has a box in it."""
        if not self._size(start, stop):
            return 0, 0
        first, last = (
            sum(at * stride for at, stride in zip(corner, self._strides(), strict=True))
            for corner in (start, [high - 1 for high in stop])
        )
        return first, last + self.itemsize

    def _size(self, start: Index, stop: Index) -> int:
        return prod(extents(start, stop)) * self.itemsize

    def _strides(self) -> Index:
        """Of its bytes, which are row-major whatever the form is."""
        return tuple(prod(self.shape[dim + 1 :]) * self.itemsize for dim in range(len(self.shape)))


def bring_all(wanted: Iterable[Wanted]) -> Iterator[memoryview]:
    """The bytes of many ranges, in order; the next ones are under way meanwhile."""
    ahead: deque[_Group] = deque()
    under_way = 0
    for group in _groups(wanted):
        ahead.append(_sent(group))
        under_way += ahead[-1].size
        while under_way > _AHEAD:
            under_way -= ahead[0].size
            yield from _arrived(ahead.popleft())
    while ahead:
        yield from _arrived(ahead.popleft())


class _Group(NamedTuple):
    """Ranges of bytes that are in memory of the host once the mark has come."""

    contents: list[Tensor]
    mark: Mark
    size: int


def _groups(wanted: Iterable[Wanted]) -> Iterator[list[Wanted]]:
    """What may cross together."""
    group: list[Wanted] = []
    size = 0
    for leaf, span in wanted:
        size += span[1] - span[0]
        if group and (size > _TOGETHER or leaf.shadow.on_host or leaf.lane is not group[0][0].lane):
            yield group
            group, size = [], span[1] - span[0]
        group.append((leaf, span))
        if leaf.shadow.on_host:
            yield group
            group, size = [], 0
    if group:
        yield group


def _sent(group: list[Wanted]) -> _Group:
    leaf, _ = group[0]
    sources = [leaf.shadow.content[slice(*span)] for leaf, span in group]
    sizes = [len(source) for source in sources]
    if leaf.shadow.on_host:
        return _Group(sources, leaf.ready, sum(sizes))
    starts = list(accumulate((size + -size % _ALIGN for size in sizes), initial=0))[:-1]
    memory = leaf.lane.pinned(starts[-1] + sizes[-1])
    targets = [memory[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    leaf.lane.submit(lambda: copy_bytes(zip(targets, sources, strict=True)))
    return _Group(targets, leaf.lane.mark(), len(memory))


def _arrived(group: _Group) -> list[memoryview]:
    group.mark.wait()
    return [content.numpy().data for content in group.contents]


def copy_bytes(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
    """Copy each second one to its first one; nothing waits."""
    for target, source in pairs:
        target.copy_(source, non_blocking=True)
