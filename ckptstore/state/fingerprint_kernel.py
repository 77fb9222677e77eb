"""The kernel behind `fingerprints`, in Triton, which torch brings along for CUDA. Imported only there.

One program hashes one segment: all of its words are in flight at once, so that memory is what it waits for. Data is not
kept in the first cache (`.cg`), so that the keys are. One launch does all tensors.
"""

# mypy: disable-error-code="untyped-decorator"

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

_WARPS = 8


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


@triton.jit(do_not_specialize_on_alignment=["bases", "sizes", "firsts"])  # rows of a table, each at any place
def _hash_segment(
    owners: tl.tensor,
    bases: tl.tensor,
    sizes: tl.tensor,
    firsts: tl.tensor,
    keys: tl.tensor,
    hashes: tl.tensor,
    count: tl.constexpr,
) -> None:
    segment = tl.program_id(0)
    owner = tl.load(owners + segment)
    start = (segment - tl.load(firsts + owner)).to(tl.int64) * (count * 8)
    length = tl.load(sizes + owner) - start
    base = tl.load(bases + owner) + start
    places = tl.arange(0, count)
    if (length >= count * 8) & (base % 16 == 0):  # noqa: SIM108 - Triton's conditional expression takes no branch
        words = _whole(base, count)
    else:
        words = _ragged(base, length, count)
    for number in tl.static_range(2):
        key = tl.load(keys + number * count + places)
        total = tl.sum(_product(words, key.to(tl.uint64)))
        tl.store(hashes + segment * 2 + number, total.to(tl.int64))


def launch(tensors: Sequence[Tensor], keys: Tensor) -> Tensor:
    """What `fingerprints` gives, on the current stream of the keys' device."""
    words = keys.shape[1]
    counts = torch.tensor([-(-tensor.nbytes // (8 * words)) for tensor in tensors], device="cpu")
    places = torch.tensor([[tensor.data_ptr(), tensor.nbytes] for tensor in tensors], device="cpu")
    total = int(counts.sum())
    table = _on(keys.device, torch.stack([*places.T, counts.cumsum(0) - counts, counts]))
    bases, sizes, firsts, counts = table
    owners = torch.repeat_interleave(counts, output_size=total)
    hashes = torch.empty(total, 2, dtype=torch.int64, device=keys.device)
    with torch.cuda.device_of(keys):  # type: ignore[no-untyped-call]
        _hash_segment[(total,)](
            owners, bases, sizes, firsts, keys, hashes, count=words, num_warps=_WARPS, sanitize_overflow=False
        )  # sums are to wrap around, also where Triton debugs
    return hashes


def _on(device: torch.device, table: Tensor) -> Tensor:
    return table.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else table
