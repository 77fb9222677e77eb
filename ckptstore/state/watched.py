"""Whether tensors were changed while a commit read them where they are."""

from __future__ import annotations

from torch import Tensor

from ckptstore.errors import changed_meanwhile
from ckptstore.state.tensors import TensorLeaf
from ckptstore.state.tree import Flat


class Watched:
    """The tensors of the host that a commit reads where they are; torch counts how often each was changed."""

    def __init__(self, flat: Flat) -> None:
        arrays = ((path, leaf.tensor) for path, leaf in flat.leaves.items() if type(leaf) is TensorLeaf)
        tensors = ((path, array) for path, array in arrays if isinstance(array, Tensor) and not array.is_inference())
        self._seen = [(path, tensor, tensor._version) for path, tensor in tensors]  # noqa: SLF001 - has no public name

    def check(self) -> None:
        """Raises StateError when one was changed meanwhile: what was read of it may be of no moment."""
        for path, tensor, version in self._seen:
            if tensor._version != version:  # noqa: SLF001 - has no public name
                raise changed_meanwhile(path)
