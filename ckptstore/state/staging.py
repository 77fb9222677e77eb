"""Setting a state apart, so that training may go on while it is written.

What only optimizers change is left where it is until one of them steps. Everything else is copied at once, to memory
that is kept for the next commit, unless that memory holds the same already.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from ckptstore.format.manifest import Value
from ckptstore.state.addresses import lacks_address
from ckptstore.state.arrays import Array, as_tracked, is_of_others, is_row_major, plain_bytes
from ckptstore.state.clones import clone
from ckptstore.state.devices.leaf import DeviceLeaf
from ckptstore.state.devices.staging import DeviceStager
from ckptstore.state.kept import Bytes, Kept, KeptBuffers
from ckptstore.state.lending import Lender, LiveLeaf, live_leaf
from ckptstore.state.optimizers import Owned, changed_by_calls
from ckptstore.state.pieces import PiecedLeaf
from ckptstore.state.settling import JustInTime
from ckptstore.state.shards import form_of
from ckptstore.state.steps import Hooks, is_within_one, stepping
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.tree import Flat

_SMALL = 4096

Leaves = Mapping[str, TensorLeaf | Value]


@dataclass(frozen=True, slots=True)
class Staged:
    """A state set apart.

    Attributes:
        flat: what is to be committed.
        just_in_time: watches over those of its leaves that are live.
    """

    flat: Flat
    just_in_time: JustInTime

    def prepare(self) -> None:
        """Wait until devices know what changed, and get ready to copy what is live; training goes on meanwhile."""
        for look in {leaf.look for leaf in self.flat.leaves.values() if isinstance(leaf, DeviceLeaf)}:
            look.wait()  # or this thread would keep Python's lock from who launches kernels, to no end
        self.just_in_time.prepare()

    def settled(self) -> Flat:
        """The state with nothing live in it; what still is gets copied. Raises StateError, see `Lender.check`."""
        self.prepare()
        self.just_in_time.settle_all()
        return replace(self.flat, leaves={path: _settled(leaf) for path, leaf in self.flat.leaves.items()})

    def close(self) -> None:
        """Nobody commits it any more: nothing is kept of the state."""
        self.just_in_time.close()
        self.settle()

    def settle(self) -> None:
        """Return once anybody may change the state, from any queue of a device too."""
        self.just_in_time.settle_all()
        for leaf in self.flat.leaves.values():
            if isinstance(leaf, DeviceLeaf):
                leaf.ready.wait()
                leaf.look.wait()


class Stager:
    """Stages the states of one store, one at a time.

    Args:
        fingerprint: tells content from other content, faster than it is copied; without one, everything is copied.
    """

    def __init__(self, fingerprint: Callable[[memoryview], bytes] | None) -> None:
        self._fingerprint = fingerprint
        self._buffers = KeptBuffers()
        self._devices = DeviceStager()
        self._hooks = Hooks()
        self._copied: list[tuple[Kept, bytes | None]] = []

    def close(self) -> None:
        """Free the kept memory, and leave the optimizers."""
        self._hooks.detach()
        self._copied.clear()
        self._buffers.close()
        self._devices.clear()

    def stage(self, flat: Flat, *, just_in_time: bool) -> Staged:
        """The state as it is now. With `just_in_time`, what its optimizers own stays live; what is tied is copied once.

        Within a step of any, nothing does: it may go on to change what it likes. What was staged before must not be
        read any more.
        """
        single = _untied(flat)
        self._buffers.forget_all_but(single)
        watched = just_in_time and not is_within_one()
        found = map(stepping, flat.stateful.values()) if watched else ()
        optimizers = [optimizer for optimizer in found if optimizer is not None]
        there = self._devices.stage(single, apart=True)
        here = {path: leaf for path, leaf in single.items() if path not in there}
        lendable = {path: leaf for path, leaf in here.items() if _may_be_lent(leaf)} if optimizers else {}
        live, owners = self._live(lendable, flat, optimizers) if lendable else ({}, {})
        if owners:
            self._hooks.attach(owners)
        staged = there | live | self._copies({path: leaf for path, leaf in here.items() if path not in live})
        sharded = {path: form_of(tensor) for path, tensor in flat.sharded.items()}
        return Staged(replace(_with(flat, staged), sharded=sharded), JustInTime(owners, self._buffers))

    def look(self, flat: Flat) -> Flat:
        """The state where it is, with what is known of tensors on devices; it may not change before it is committed.

        What was staged before must not be read any more.
        """
        single = _untied(flat)
        there = self._devices.stage(single, apart=False)
        apart = there | _fetched(single)
        return _with(flat, single | apart) if apart else flat

    def remember(self) -> None:
        """Learn what is in the memory that was copied to, and which leaves change; get ready for devices' next ones.

        Takes time, so not while staging.
        """
        copied, self._copied = self._copied, []
        if self._fingerprint is not None:
            found = self._buffers.fingerprints(self._fingerprint, [kept.content for kept, _ in copied])
            for (kept, before), now in zip(copied, found, strict=True):
                kept.fingerprint, kept.steady = now, before in {None, now}
        self._devices.prepare()

    def _live(
        self, leaves: Mapping[str, TensorLeaf], flat: Flat, optimizers: Sequence[Optimizer]
    ) -> tuple[dict[str, TensorLeaf | Value], dict[Optimizer, list[Lender]]]:
        live: dict[str, TensorLeaf | Value] = {}
        lenders: dict[Optimizer, list[Lender]] = {}
        owned = Owned(optimizers, changed_by_calls(flat.stateful.values()))
        for path, leaf in leaves.items():
            owners, own = owned.owners(leaf.tensor)
            if owners:
                shown = [*own, flat.sharded[path]] if path in flat.sharded else own
                live[path] = made = live_leaf(path, leaf, shown, self._buffers)
                for owner in owners:
                    lenders.setdefault(owner, []).append(made.lender)
        return live, lenders

    def _copies(self, leaves: Leaves) -> dict[str, TensorLeaf | Value]:
        plain = {path: found for path, leaf in leaves.items() if (found := _plain(leaf)) is not None}
        kept = {path: self._buffers.take(path, len(source)) for path, source in plain.items()}
        unchanged = self._unchanged(plain, kept)
        changed = [path for path in plain if path not in unchanged]
        for path in changed:
            self._copied.append((kept[path], kept[path].fingerprint))
            kept[path].fingerprint = None
        self._buffers.copy([(plain[path], kept[path].content) for path in changed])
        return {path: _copy(leaf, kept.get(path)) for path, leaf in leaves.items()}

    def _unchanged(self, plain: Mapping[str, Bytes], kept: Mapping[str, Kept]) -> set[str]:
        """Those that did not change last time, and not since."""
        steady = [path for path, held in kept.items() if held.fingerprint is not None and held.steady]
        if self._fingerprint is None or not steady:
            return set()
        found = self._buffers.fingerprints(self._fingerprint, [plain[path] for path in steady])
        return {path for path, now in zip(steady, found, strict=True) if now == kept[path].fingerprint}


def _untied(flat: Flat) -> dict[str, TensorLeaf | Value]:
    """What is tied, once."""
    repeated = flat.tied
    return {path: leaf for path, leaf in flat.leaves.items() if path not in repeated}


def _with(flat: Flat, leaves: Leaves) -> Flat:
    """The state with other leaves, given once for all that are tied."""
    first = flat.tied
    return replace(flat, leaves={path: leaves[first.get(path, path)] for path in flat.leaves})


def _plain(leaf: TensorLeaf | Value) -> Bytes | None:
    """Memory of the host that is worth being kept."""
    plain = plain_bytes(leaf.tensor) if isinstance(leaf, TensorLeaf) and leaf.nbytes >= _SMALL else None
    return None if plain is None else np.frombuffer(plain, np.uint8)


def _may_be_lent(leaf: TensorLeaf | Value) -> TypeGuard[TensorLeaf]:
    """Whether it is a tensor that `_plain` finds the memory of."""
    if not isinstance(leaf, TensorLeaf) or leaf.nbytes < _SMALL or not isinstance(leaf.tensor, Tensor):
        return False
    return leaf.tensor.is_cpu and is_row_major(leaf.tensor) and not is_of_others(leaf.tensor)


def _fetched(leaves: Leaves) -> dict[str, TensorLeaf | Value]:
    return {
        path: _copy(leaf, None)
        for path, leaf in leaves.items()
        if isinstance(leaf, TensorLeaf) and lacks_address(leaf.tensor)
    }


def _copy(leaf: TensorLeaf | Value, kept: Kept | None) -> TensorLeaf | Value:
    if not isinstance(leaf, TensorLeaf) or isinstance(leaf, PiecedLeaf):
        return leaf
    made = clone(leaf.tensor) if kept is None else _shaped(kept.content, leaf.tensor)
    if isinstance(made, Tensor):
        made = as_tracked(made, parameter=leaf.parameter, requires_grad=leaf.requires_grad)
    return TensorLeaf(made)


def _settled(leaf: TensorLeaf | Value) -> TensorLeaf | Value:
    return _copy(leaf, leaf.lender.copied()) if isinstance(leaf, LiveLeaf) else leaf


def _shaped(content: Bytes, like: Array) -> Array:
    if isinstance(like, Tensor):
        return torch.from_numpy(content).view(like.dtype).view(like.shape)
    return content.view(like.dtype).reshape(like.shape)
