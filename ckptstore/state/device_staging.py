"""Setting the tensors of a device apart. What changed since the last time is told by fingerprints: only that is copied,
within the device where there is room and to the host where there is not, and what did not keeps its digests. The host
waits for the fingerprints only; training waits for the copies where it runs, on the device.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from threading import Lock
from typing import NamedTuple

import torch
from torch import Tensor

from ckptstore.format.manifest import Value
from ckptstore.state.device_leaf import DeviceLeaf, copy_bytes, form_of
from ckptstore.state.fingerprints import fingerprints, segments
from ckptstore.state.lanes import Lane, Mark, lane_of
from ckptstore.state.prints import Prints, Span, changed_spans, untouched
from ckptstore.state.shadows import Shadow, Shadows
from ckptstore.state.tensors import TensorLeaf, as_row_major, as_tracked, flat_bytes, same_place

_GAP_THERE, _GAP_HERE = 8 << 20, 256 << 10
"""Bytes that are sooner copied than left out: a copy more takes as long, within a device and to the host."""


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
        self._lanes |= {lane: _LaneStager(lane) for lane in by_lane if lane not in self._lanes}
        looks = {lane: self._looked(lane, group) for lane, group in by_lane.items()}
        staged: dict[str, TensorLeaf] = {}
        for lane, look in looks.items():
            group = by_lane[lane]
            staged |= _fetched(group) if look is None else self._lanes[lane].stage(group, look, apart=apart)
        return staged

    def _looked(self, lane: Lane, group: Mapping[str, Tensor]) -> _Look | None:
        try:
            return self._lanes[lane].look(group)
        except torch.OutOfMemoryError as error:
            warnings.warn(
                f"all is copied to the host, since a device has no memory to tell what changed: {error}", stacklevel=2
            )
            return None

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
    copied = tensor.detach().to("cpu", copy=True)
    return as_tracked(copied, parameter=isinstance(tensor, torch.nn.Parameter), requires_grad=tensor.requires_grad)


def _live(rows: Mapping[str, Tensor]) -> dict[str, Shadow]:
    """The tensors themselves instead of copies."""
    return {path: Shadow(flat_bytes(row), on_host=False) for path, row in rows.items()}


class _Look(NamedTuple):
    """What a device was asked for: the row-major tensors, and their fingerprints once `ready` has come."""

    sizes: dict[str, int]
    rows: dict[str, Tensor]
    found: Tensor
    ready: Mark

    def prints(self) -> Prints:
        self.ready.wait()
        return Prints(self.sizes, self.found.view(torch.int64).view(-1, 2).numpy().copy())


class _LaneStager:
    """Stages the tensors of one device."""

    def __init__(self, lane: Lane) -> None:
        self._lane = lane
        self._shadows = Shadows(lane)
        self._copied: Prints | None = None
        self._named: Prints | None = None
        self._digests: dict[str, dict[Span, bytes]] = {}
        self._forms: dict[str, Tensor] = {}
        self._turn = Lock()

    def look(self, tensors: Mapping[str, Tensor]) -> _Look:
        sizes = {path: tensor.nbytes for path, tensor in tensors.items()}
        found = self._lane.pinned(16 * sum(map(segments, sizes.values())))
        rows: dict[str, Tensor] = {}

        def work() -> None:
            rows.update((path, as_row_major(tensor)) for path, tensor in tensors.items())
            copy_bytes([(found, fingerprints(list(rows.values())).view(-1).view(torch.uint8))])

        self._lane.follow()
        self._lane.submit(work)
        return _Look(sizes, rows, found, self._lane.mark())

    def stage(self, tensors: Mapping[str, Tensor], look: _Look, *, apart: bool) -> dict[str, DeviceLeaf]:
        copied, shadows, fresh = self._copied, dict[str, Shadow](), set[str]()
        if apart:
            self._copied = None  # until they hold what they shall
            shadows, fresh = self._shadows.take(look.sizes)
        forms = self._forms = {path: form_of(tensor, self._forms.get(path)) for path, tensor in tensors.items()}
        places = {path: same_place(tensor) for path, tensor in tensors.items()}
        now = look.prints()  # the device took its time for them meanwhile
        digests = self._known(now)
        if apart:
            self._copy(look.rows, shadows, _missing(now, copied, shadows, fresh))
            self._copied = now
        else:
            shadows = _live(look.rows)
        ready = self._lane.mark()
        return {
            path: DeviceLeaf(forms[path], shadows[path], ready, self._lane, places[path], digests[path])
            for path in tensors
        }

    def _known(self, now: Prints) -> dict[str, dict[Span, bytes]]:
        """The digests of what is still the same. Commits of several threads may ask."""
        with self._turn:
            known = {path: self._digests.get(path, {}) for path in now.sizes}
            for path, changed in now.changes(self._named).items():
                known[path] = untouched(known[path].copy(), changed)  # to which another commit may add meanwhile
            self._named, self._digests = now, known
            return known

    def _copy(self, rows: Mapping[str, Tensor], shadows: Mapping[str, Shadow], spans: Mapping[str, list[Span]]) -> None:
        if spans:
            self._lane.submit(lambda: copy_bytes(_pairs(rows, shadows, spans)), [rows[path] for path in spans])
            self._lane.hold_back()


def _missing(
    now: Prints, copied: Prints | None, shadows: Mapping[str, Shadow], fresh: set[str]
) -> dict[str, list[Span]]:
    """What shadows do not hold yet."""
    found = {path: [(0, now.sizes[path])] for path in fresh}
    for path, changed in now.changes(copied).items():
        if path not in fresh:
            found[path] = changed_spans(changed, now.sizes[path], _GAP_HERE if shadows[path].on_host else _GAP_THERE)
    return found


def _pairs(
    rows: Mapping[str, Tensor], shadows: Mapping[str, Shadow], spans: Mapping[str, list[Span]]
) -> Iterator[tuple[Tensor, Tensor]]:
    """One after the other, so that the device begins with the first ones at once."""
    for path, of_leaf in spans.items():
        source = flat_bytes(rows[path])
        yield from ((shadows[path].content[slice(*span)], source[slice(*span)]) for span in of_leaf)
