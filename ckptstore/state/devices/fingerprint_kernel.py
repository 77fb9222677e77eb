"""The kernel behind `fingerprints`, in Triton, which torch brings along for CUDA. Imported only there.

One program does one segment: all of its words are in flight at once, so that memory is what it waits for, and what it
copies was read already. Data is not kept in the first cache (`.cg`), so that the keys are. One launch does all tensors.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from ckptstore.state.devices.copy_targets import CopyTargets

_WARPS, _REGISTERS = 8, 80
"""Of a program, and of each thread at most: so that three programs fit on a multiprocessor of an H100 or H200."""


@triton.jit
def _product(words: tl.tensor, keys: tl.tensor) -> tl.tensor:
    low = words.to(tl.uint32) + keys.to(tl.uint32)
    high = (words >> 32).to(tl.uint32) + (keys >> 32).to(tl.uint32)
    return low.to(tl.uint64) * high.to(tl.uint64)


@triton.jit
def _whole(base: tl.tensor, count: tl.constexpr) -> tl.tensor:
    """All words of a full segment that begins at a multiple of 16 bytes, loaded 16 bytes at a time."""
    pointers = base.to(tl.pointer_type(tl.uint64)) + tl.arange(0, count)
    return tl.load(tl.multiple_of(pointers, 16), cache_modifier=".cg")


@triton.jit
def _ragged(base: tl.tensor, length: tl.tensor, count: tl.constexpr) -> tl.tensor:
    """The words of any segment, loaded byte by byte; zeros behind its end."""
    data = base.to(tl.pointer_type(tl.uint8))
    words = tl.zeros([count], tl.uint64)
    for byte in range(8):
        places = tl.arange(0, count) * 8 + byte
        words |= tl.load(data + places, mask=places < length, other=0).to(tl.uint64) << (8 * byte)
    return words


@triton.jit
def _keep_whole(base: tl.tensor, words: tl.tensor, count: tl.constexpr) -> None:
    pointers = base.to(tl.pointer_type(tl.uint64)) + tl.arange(0, count)
    tl.store(tl.multiple_of(pointers, 16), words)


@triton.jit
def _keep_ragged(base: tl.tensor, words: tl.tensor, length: tl.tensor, count: tl.constexpr) -> None:
    data = base.to(tl.pointer_type(tl.uint8))
    for byte in range(8):
        places = tl.arange(0, count) * 8 + byte
        tl.store(data + places, (words >> (8 * byte)).to(tl.uint8), mask=places < length)


@triton.jit
def _hash(words: tl.tensor, keys: tl.tensor, count: tl.constexpr) -> tl.tensor:
    key = tl.load(keys + tl.arange(0, count)).to(tl.uint64)
    return tl.sum(_product(words, key)).to(tl.int64)


@triton.jit(do_not_specialize_on_alignment=["bases", "sizes", "begins", "targets", "firsts"])  # rows of a table
def _do_segment(
    owners: tl.tensor,
    bases: tl.tensor,
    sizes: tl.tensor,
    begins: tl.tensor,
    targets: tl.tensor,
    firsts: tl.tensor,
    held: tl.tensor,
    keys: tl.tensor,
    hashes: tl.tensor,
    count: tl.constexpr,
) -> None:
    segment = tl.program_id(0)
    owner = tl.load(owners + segment)
    place = segment - tl.load(begins + owner)
    start = place.to(tl.int64) * (count * 8)
    length = tl.load(sizes + owner) - start
    base = tl.load(bases + owner) + start
    target = tl.load(targets + owner)
    if (length >= count * 8) & (base % 16 == 0):  # noqa: SIM108 - Triton's conditional expression takes no branch
        words = _whole(base, count)
    else:
        words = _ragged(base, length, count)
    one = _hash(words, keys, count)
    other = _hash(words, keys + count, count)
    tl.store(hashes + segment * 2, one)
    tl.store(hashes + segment * 2 + 1, other)
    if target != 0:
        first = tl.load(firsts + owner)
        row = held + (first + place) * 2
        is_held = first >= 0
        same = (tl.load(row, mask=is_held, other=0) == one) & (tl.load(row + 1, mask=is_held, other=0) == other)
        if not (is_held & same):
            target += start
            if (length >= count * 8) & (target % 16 == 0):
                _keep_whole(target, words, count)
            else:
                _keep_ragged(target, words, length, count)


def launch(tensors: Sequence[Tensor], keys: Tensor, copies: CopyTargets | None = None) -> Tensor:
    """What `fingerprints` gives and does, on the current stream of the keys' device."""
    words = keys.shape[1]
    targets, firsts, held = copies or ([None] * len(tensors), [None] * len(tensors), None)
    rows = [
        [tensor.data_ptr() for tensor in tensors],
        [tensor.nbytes for tensor in tensors],
        [0 if target is None else target.data_ptr() for target in targets],
        [-1 if first is None else first for first in firsts],
    ]
    bases, sizes, into, first_rows = torch.from_numpy(np.array(rows, np.int64))  # which is faster than torch.tensor
    counts = (sizes + (8 * words - 1)) // (8 * words)
    total = int(counts.sum())
    table = _on(keys.device, torch.stack([bases, sizes, counts.cumsum(0) - counts, into, first_rows, counts]))
    *columns, counts = table
    owners = torch.repeat_interleave(counts, output_size=total)
    hashes = torch.empty(total, 2, dtype=torch.int64, device=keys.device)
    with torch.cuda.device_of(keys):  # type: ignore[no-untyped-call]
        _do_segment[(total,)](
            owners,
            *columns,
            keys if held is None else held,  # then nobody looks at it
            keys,
            hashes,
            count=words,
            num_warps=_WARPS,
            maxnreg=_REGISTERS,
            sanitize_overflow=False,
        )  # sums are to wrap around, also where Triton debugs
    return hashes


def _on(device: torch.device, table: Tensor) -> Tensor:
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table
