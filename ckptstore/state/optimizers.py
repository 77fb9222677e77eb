"""Which memory only optimizers change, and only in their `step`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from ckptstore.state.addresses import same_place
from ckptstore.state.arrays import Array
from ckptstore.state.composites import is_dense
from ckptstore.state.shards import is_sharded, part_of

_EMBEDDINGS = (torch.nn.Embedding, torch.nn.EmbeddingBag)


class Owned:
    """Parameters of some optimizers and tensors of their state, as they are now; of DTensors, this process's parts.

    What else an optimizer refers to, such as a learning rate that is a tensor, is also changed by others. So is what
    has its storage among `changing`.
    """

    def __init__(self, optimizers: Iterable[Optimizer], changing: AbstractSet[int] = frozenset()) -> None:
        self._beginning: dict[int, list[Tensor]] = {}
        self._sharing: dict[int, list[Optimizer]] = {}
        for optimizer in optimizers:
            for tensor in _tensors(optimizer):
                storage = _storage(tensor)
                if storage in changing:
                    continue
                self._beginning.setdefault(tensor.data_ptr(), []).append(tensor)
                owners = self._sharing.setdefault(storage, [])
                if optimizer not in owners:
                    owners.append(optimizer)

    def owners(self, array: Array) -> tuple[list[Optimizer], list[Tensor]]:
        """The optimizers that may change an array's memory, when it is one of their tensors; else none.

        And those tensors of theirs: others may count changes apart, as what `.data` gives does.
        """
        if not isinstance(array, Tensor) or not _is_plain(array):
            return [], []
        there = self._beginning.get(array.data_ptr(), ())
        own = [tensor for tensor in there if tensor is array or same_place(tensor) == same_place(array)]
        return self._sharing[_storage(array)] if own else [], own


def marks(optimizer: Optimizer) -> set[int]:
    """What its tensors may be known by: where their memory begins, and the objects themselves.

    These go on counting changes when `.data` gives them other memory. Others may come to have the same marks.
    """
    mine = _own(optimizer)
    return {_storage(tensor) for tensor in _plain(mine)}.union(map(id, _found(mine)))


def changed_by_calls(values: Iterable[object]) -> set[int]:
    """Where the memory begins that modules among these change when they are called: embeddings with a `max_norm`."""
    found = (part for value in values if isinstance(value, torch.nn.Module) for part in value.modules())
    weights = [part.weight for part in found if isinstance(part, _EMBEDDINGS) and part.max_norm is not None]
    return {_storage(tensor) for tensor in _within(weights) if _is_plain(tensor)}


def _tensors(optimizer: Optimizer) -> Iterator[Tensor]:
    return _plain(_own(optimizer))


def _own(optimizer: Optimizer) -> Any:
    return [group["params"] for group in optimizer.param_groups], optimizer.state


def _plain(value: Any) -> Iterator[Tensor]:
    return (tensor for tensor in _within(value) if _is_plain(tensor))


def _is_plain(tensor: Tensor) -> bool:
    """Whether a tensor is memory of the host that says by a version when it was changed."""
    plain = type(tensor) in {Tensor, torch.nn.Parameter} and is_dense(tensor) and tensor.is_cpu
    return plain and bool(tensor.nbytes) and not tensor.is_inference()


def _within(value: Any) -> Iterator[Tensor]:
    return (part_of(tensor) if is_sharded(tensor) else tensor for tensor in _found(value))


def _found(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _found(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _found(item)


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
