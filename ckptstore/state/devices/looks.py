"""What tensors of one device look like: at one time, and as far as that is known from earlier ones."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from ckptstore.cached import cached_property
from ckptstore.locks import Lock
from ckptstore.state.addresses import same_place
from ckptstore.state.arrays import as_tracked
from ckptstore.state.devices.fingerprints import segments
from ckptstore.state.devices.lanes import Lane, Mark
from ckptstore.state.devices.prints import Prints, Rows, Span, unlike_any, untouched

Digests = Mapping[str, dict[Span, bytes]]
"""Path → what the store calls ranges of that tensor's bytes."""

Compute = Callable[[Callable[[Tensor], None]], None]
"""Calls what it is given with the fingerprints of some tensors after those of others, on their device."""


class Traits(NamedTuple):
    """All of a tensor but its bytes.

    Attributes:
        key: equal for tensors that have the same.
        form: a tensor of the same form without memory.
        place: `same_place`.
    """

    key: tuple[object, ...]
    form: Tensor
    place: Hashable


def traits_of(tensor: Tensor, before: Traits | None) -> Traits:
    """The traits; those that there were `before` when they are the same."""
    key = (
        tensor.data_ptr(),
        tensor.shape,
        tensor.stride(),
        tensor.dtype,
        type(tensor),
        tensor.requires_grad,
        tensor.is_conj(),
        tensor.is_neg(),
    )
    if before is not None and before.key == key and tensor.nbytes:  # the place of an empty one lasts as long as it
        return before
    tracked = {"parameter": isinstance(tensor, torch.nn.Parameter), "requires_grad": tensor.requires_grad}
    return Traits(key, _form(tensor.shape, tensor.stride(), tensor.dtype, **tracked), same_place(tensor))


@lru_cache(1024)
def _form(
    shape: torch.Size, strides: tuple[int, ...], dtype: torch.dtype, *, parameter: bool, requires_grad: bool
) -> Tensor:
    made = torch.empty_strided(shape, strides, dtype=dtype, device="meta")
    return as_tracked(made, parameter=parameter, requires_grad=requires_grad)


class Learned:
    """What the store calls the bytes of a device's tensors, known again by their fingerprints. Safe for threads."""

    def __init__(self) -> None:
        self._prints: Prints | None = None
        self._digests: Digests = {}
        self._turn = Lock()

    def digests(self, now: Prints) -> Digests:
        """Those of what is still the same; what is added to them is known from here on."""
        with self._turn:
            known = {path: self._digests.get(path, {}) for path in now.sizes}
            for path, changed in now.changes(self._prints).items():
                known[path] = untouched(known[path].copy(), changed)  # to which another commit may add meanwhile
            self._prints, self._digests = now, known
            return known


class Look:
    """The fingerprints of a device's tensors at one time. Safe for threads.

    Attributes:
        tensors: path → the tensor, until it is known to have been read: memory that is freed may be given to a queue of
            the device that waits for nobody.
        sizes: path → its bytes.
        hashes: the fingerprints, on the device, once it is at bringing them.
    """

    hashes: Tensor

    def __init__(self, lane: Lane, tensors: Mapping[str, Tensor], learned: Learned) -> None:
        self.tensors = tensors
        self.sizes = {path: tensor.nbytes for path, tensor in tensors.items()}
        self._lane, self._learned = lane, learned
        self._parts: list[Tensor] = []
        self._compute: Compute | None = None
        self._ready: Mark | None = None
        self._prints: Prints | None = None
        self._digests: Digests | None = None
        self._turn = Lock()

    def add(self, hashes: Tensor) -> None:
        """The fingerprints of the next ones of the tensors, on the device."""
        self._parts.append(hashes)

    def bring_later(self, compute: Compute) -> None:
        """What the lane was given so far has read the tensors; `compute` gives the fingerprints, once asked for."""
        self._compute = compute
        self._ready = self._lane.mark()

    @property
    def is_submitted(self) -> bool:
        """Whether the device was given all that the fingerprints take."""
        return self._compute is None

    def bring(self) -> None:
        """Let the device bring those that are added until it comes to that."""
        with torch.inference_mode(mode=False):  # or nobody could write there outside of it
            self._found = self._lane.pinned(16 * sum(map(segments, self.sizes.values())))
        self._lane.submit(self._bring)
        self._ready = self._lane.mark()

    @cached_property
    def firsts(self) -> dict[str, int]:
        """Path → the first row of the tensor's fingerprints."""
        return dict(zip(self.sizes, accumulate(map(segments, self.sizes.values()), initial=0), strict=False))

    def wait(self) -> None:
        """Wait until the device has read the tensors."""
        assert self._ready is not None
        self._ready.wait()
        self.tensors = {}

    def prints(self) -> Prints:
        """The fingerprints. Waits for the device."""
        with self._turn:
            return self._printed()

    def digests(self) -> Digests:
        """What is known of the tensors' bytes, to be added to. Waits for the device."""
        with self._turn:
            if self._digests is None:
                self._digests = self._learned.digests(self._printed())
            return self._digests

    def _bring(self) -> None:
        self.hashes = torch.cat(self._parts)
        self._parts.clear()
        self._found.copy_(self.hashes.view(-1).view(torch.uint8), non_blocking=True)

    def _printed(self) -> Prints:
        if self._prints is None:
            self._prints = Prints(self.sizes, self._rows())
        return self._prints

    def _rows(self) -> Rows:
        if self._compute is not None:
            try:
                self._parts.clear()
                self._compute(self.add)
                self.bring()
            except torch.OutOfMemoryError:
                self._parts.clear()
                return unlike_any(self.sizes)
            self._compute = None
        self.wait()
        rows = self._found.view(torch.int64).view(-1, 2).numpy().copy()
        del self._found
        return rows
