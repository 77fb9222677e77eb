"""Setting the tensors of a device apart. While it computes their fingerprints it copies what changed since last time,
within the device where there is room; where there is not, the host waits for them and has what changed copied there.
What did not change keeps its digests. Training waits for the copies where it runs, on the device. Where all is copied
there, to memory that held nothing, the fingerprints are computed from the copies later.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ckptstore.batching import batched
from ckptstore.format.manifest import Value
from ckptstore.state.arrays import as_row_major, as_tracked_like, flat_bytes
from ckptstore.state.devices.copy_targets import CopyTargets
from ckptstore.state.devices.fingerprints import fingerprints, prepare
from ckptstore.state.devices.lanes import Lane, lane_of
from ckptstore.state.devices.leaf import DeviceLeaf, copy_bytes
from ckptstore.state.devices.looks import Learned, Look, Traits, traits_of
from ckptstore.state.devices.prints import Span, changed_spans
from ckptstore.state.devices.shadows import Shadow, Shadows
from ckptstore.state.tensors import TensorLeaf

_AT_ONCE = 512
"""Tensors that the device is at while the host makes the next ones ready."""
_GAP = 256 << 10
"""Bytes that are sooner copied to the host than left out: a copy more takes as long."""


class DeviceStager:
    """Stages the tensors on all devices for one store, one state at a time."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, _LaneStager] = {}

    def stage(self, leaves: Mapping[str, TensorLeaf | Value], *, apart: bool) -> dict[str, TensorLeaf]:
        """Those leaves that lie on devices, as they are now; what was staged before must not be read any more.

        Work that current queues are given after the return may change the tensors with `apart`; otherwise nothing is
        copied, and it may not before the commit is over.
        """
        by_lane = _by_lane(leaves)
        for lane, group in by_lane.items():
            if lane not in self._lanes:
                self._lanes[lane] = _LaneStager(lane, next(iter(group.values())).device)
        begun = {lane: self._begun(lane, group, apart=apart) for lane, group in by_lane.items()}
        staged: dict[str, TensorLeaf] = {}
        for lane, work in begun.items():
            staged |= _fetched(by_lane[lane]) if work is None else self._lanes[lane].finish(work, apart=apart)
        return staged

    def _begun(self, lane: Lane, group: Mapping[str, Tensor], *, apart: bool) -> _Begun | None:
        try:
            return self._lanes[lane].begin(group, apart=apart)
        except torch.OutOfMemoryError as error:
            warnings.warn(
                f"all is copied to the host, since a device has no memory to tell what changed: {error}", stacklevel=2
            )
            return None

    def prepare(self) -> None:
        """Get ready to stage faster. Takes time, so not while training waits."""
        for lane in list(self._lanes.values()):
            with suppress(Exception):  # whatever it is, what was staged is committed
                lane.prepare()

    def clear(self) -> None:
        """Free the kept memory."""
        self._lanes.clear()


def _by_lane(leaves: Mapping[str, TensorLeaf | Value]) -> dict[Lane, dict[str, Tensor]]:
    found: dict[Lane, dict[str, Tensor]] = {}
    for path, leaf in leaves.items():
        if isinstance(leaf, TensorLeaf) and isinstance(leaf.tensor, Tensor):
            lane = lane_of(leaf.tensor)
            if lane is not None:
                found.setdefault(lane, {})[path] = leaf.tensor
    return found


def _fetched(tensors: Mapping[str, Tensor]) -> dict[str, TensorLeaf]:
    """Copies on the host, one after the other."""
    return {path: TensorLeaf(_on_host(tensor)) for path, tensor in tensors.items()}


def _on_host(tensor: Tensor) -> Tensor:
    return as_tracked_like(tensor.detach().to("cpu", copy=True), tensor)


class _Begun(NamedTuple):
    """What a device is at with some tensors.

    Attributes:
        look: the fingerprints it will compute of them.
        rows: path → the tensor in row-major order, if it is not copied within the device; once that has begun.
        shadows: path → where it is set apart, if that is wanted.
        fresh: paths of shadows that held nothing before.
        held: what the other shadows held, as far as that is known.
    """

    look: Look
    rows: dict[str, Tensor]
    shadows: Mapping[str, Shadow]
    fresh: set[str]
    held: Look | None

    def work(self, tensors: Mapping[str, Tensor]) -> None:
        """The device's, with some of them."""
        rows = {path: as_row_major(tensor) for path, tensor in tensors.items()}
        if self.is_first:
            copy_bytes((self.shadows[path].content, flat_bytes(row)) for path, row in rows.items())
            return
        self.look.add(fingerprints(list(rows.values()), self._copies(list(rows))))
        self.rows.update((path, row) for path, row in rows.items() if self._there(path) is None)

    @property
    def is_first(self) -> bool:
        """Whether all is copied within the device, to where nothing was: their fingerprints can be computed later."""
        return len(self.fresh) == len(self.look.sizes) and not any(shadow.on_host for shadow in self.shadows.values())

    def _copies(self, paths: Sequence[str]) -> CopyTargets | None:
        """To the shadows that the device has."""
        targets = list(map(self._there, paths))
        if not any(target is not None for target in targets):
            return None
        hashes, firsts = (None, {}) if self.held is None else (self.held.hashes, self.held.firsts)
        return CopyTargets(targets, [None if path in self.fresh else firsts.get(path) for path in paths], hashes)

    def _there(self, path: str) -> Tensor | None:
        """The shadow, if the device has it."""
        shadow = self.shadows.get(path)
        return None if shadow is None or shadow.on_host else shadow.content

    def missing(self) -> dict[str, list[Span]]:
        """What shadows on the host do not hold."""
        sizes = self.look.sizes
        here = {path for path, shadow in self.shadows.items() if shadow.on_host}
        found = {path: [(0, sizes[path])] for path in here & self.fresh}
        if here - self.fresh:
            changes = self.look.prints().changes(None if self.held is None else self.held.prints())
            for path in (here - self.fresh) & changes.keys():
                found[path] = changed_spans(changes[path], sizes[path], _GAP)
        return found


class _LaneStager:
    """Stages the tensors of one device."""

    def __init__(self, lane: Lane, device: torch.device) -> None:
        self._lane, self._device = lane, device
        self._shadows = Shadows(lane)
        self._learned = Learned()
        self._traits: Mapping[str, Traits] = {}
        self._held: Look | None = None
        self._is_new = True

    def prepare(self) -> None:
        """See `DeviceStager.prepare`. Raises what `prepare` does."""
        prepare(self._device)

    def begin(self, tensors: Mapping[str, Tensor], *, apart: bool) -> _Begun:
        """Give the device its work. Raises torch.OutOfMemoryError."""
        self._lane.follow()
        if not apart and not self._is_new:  # the caller waits for the whole commit; who commits once has no use for it
            self.prepare()
        self._is_new = False
        look = Look(self._lane, tensors, self._learned)
        held, shadows, fresh = None, dict[str, Shadow](), set[str]()
        if apart:
            if self._held is not None and self._held.is_submitted:
                held = self._held
            self._held = None  # until they hold what they shall
            shadows, fresh = self._shadows.take(look.sizes)
        begun = _Begun(look, {}, shadows, fresh, held)
        for some in batched(list(tensors.items()), _AT_ONCE):
            self._lane.submit(partial(begun.work, dict(some)))
        if apart:
            self._lane.hold_back()
        if begun.is_first:
            look.bring_later(partial(_compute_fingerprints, self._lane, [shadows[path].content for path in look.sizes]))
        else:
            look.bring()
        return begun

    def finish(self, begun: _Begun, *, apart: bool) -> dict[str, DeviceLeaf]:
        """The leaves, once the device can do the rest by itself."""
        look, before = begun.look, self._traits
        traits = self._traits = {path: traits_of(each, before.get(path)) for path, each in look.tensors.items()}
        if apart:
            self._copy_here(begun)
            self._held = look
        ready = self._lane.mark()
        shadows = begun.shadows if apart else _live(begun)
        return {
            path: DeviceLeaf(its.form, path, shadows[path], ready, self._lane, look, its.place)
            for path, its in traits.items()
        }

    def _copy_here(self, begun: _Begun) -> None:
        spans = begun.missing()
        if spans:
            begun.look.wait()  # and the rows are there
            rows = [begun.rows[path] for path in spans]
            self._lane.submit(lambda: copy_bytes(_pairs(begun.rows, begun.shadows, spans)), rows)
            self._lane.hold_back()


def _compute_fingerprints(lane: Lane, contents: Sequence[Tensor], add: Callable[[Tensor], None]) -> None:
    """Let the device compute the fingerprints of some bytes of its."""

    def work(some: Sequence[Tensor]) -> None:
        add(fingerprints(some))

    for some in batched(contents, _AT_ONCE):
        lane.submit(partial(work, some))


def _live(begun: _Begun) -> dict[str, Shadow]:
    """The tensors themselves instead of copies."""
    begun.look.wait()
    return {path: Shadow(flat_bytes(row), on_host=False) for path, row in begun.rows.items()}


def _pairs(
    rows: Mapping[str, Tensor], shadows: Mapping[str, Shadow], spans: Mapping[str, list[Span]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """One after the other, so that the device begins with the first ones at once."""
    for path, of_leaf in spans.items():
        source = flat_bytes(rows[path])
        yield from ((shadows[path].content[slice(*span)], source[slice(*span)]) for span in of_leaf)
