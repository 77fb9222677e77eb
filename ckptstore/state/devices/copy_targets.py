"""Where tensors of a device are copied to, there, while they are read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class CopyTargets(NamedTuple):
    """Memory that takes tensors, except for segments that it holds already.

    Attributes:
        targets: for each tensor its bytes as uint8 on the same device; None for one that is not copied.
        firsts: for each tensor, the first row that `held` has of its target; None when that holds nothing.
        held: earlier fingerprints, if there are any.
    """

    targets: Sequence[Tensor | None]
    firsts: Sequence[int | None]
    held: Tensor | None
