"""Fingerprints of tensors, made where the tensors lie: so that what did not change need not be copied to be known.

A tensor's bytes are cut into segments of `SEGMENT` bytes, the last one filled up with zeros. A segment is read as
64-bit words, and a word as two halves of 32 bits. With random keys ``k`` of 64 bits, one for each place of a segment,
it is hashed by NH (Black, Halevi, Krawczyk, Krovetz and Rogaway, "UMAC", 1999)::

    H(m) = sum over i of ((low(m[i]) + low(k[i])) mod 2**32) * ((high(m[i]) + high(k[i])) mod 2**32), mod 2**64

twice, with independent keys. Sums do not care for order, so neither does the result for how work is spread.

**Bound.** Two different segments of the same length collide with a probability of at most 2**-64 over the keys,
whatever they are. For one hash: they differ in some half, say a high one, of word i. Fix all keys but ``low(k[i])``.
Let ``u = (low(m[i]) + low(k[i])) mod 2**32``, which is uniform, and u' the same of the other segment, so that
``u' = (u + d) mod 2**32`` with a fixed d. Let ``A != A'`` be the factors of the high halves. The hashes are equal only
if ``u*A - u'*A' = c mod 2**64`` with a fixed c. Suppose that two values of u do that, which differ by n,
``0 < n < 2**32``; then the values of u' differ by n or by ``n - 2**32``.

- By n: ``n*A = n*A' mod 2**64``. Both sides are below 2**64, so they are equal, and ``A = A'``, which was excluded.
- By ``n - 2**32``: ``n*A + (2**32 - n)*A' = 0 mod 2**64``. The sum is at most ``2**32 * max(A, A') < 2**64``, so it is
  0, and ``A = A' = 0``, which was excluded.

So at most one of the 2**32 values of u does: 2**-32 for one hash, and 2**-64 for two with independent keys. A low half
that differs is the same with the halves' roles exchanged. A tensor that changed goes unnoticed only if each changed
segment collides, and so does a chunk of it. Lengths are compared beside the hashes, so zeros that fill up make
nothing equal.

The bound holds for bytes that were chosen without knowledge of the keys. These are drawn when a process first needs
them, from the system's random numbers, and leave its memory only for the devices. Fingerprints are never stored.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor

from ckptstore.locks import Lock
from ckptstore.state.arrays import flat_bytes
from ckptstore.state.devices.copy_targets import CopyTargets

SEGMENT = 32 << 10
"""Bytes of a segment. The keys of both hashes, twice as many, stay in the innermost cache of a GPU."""

WORDS = SEGMENT // 8
_HASHES = 2
_AT_ONCE = 16 << 20
"""Bytes that operations of torch take at a time."""
TAKEN = 6 * _AT_ONCE
"""More bytes than they need for that beside them, and beside what they give."""
_HALF = 0xFFFFFFFF


def segments(size: int) -> int:
    """How many segments so many bytes have."""
    return -(-size // SEGMENT)


def fingerprints(tensors: Sequence[Tensor], copies: CopyTargets | None = None) -> Tensor:
    """The fingerprints of all segments of some tensors of one device, one tensor behind the other.

    Args:
        tensors: row-major, of any dtype.
        copies: where to copy them meanwhile, if anywhere.

    Returns:
        Two int64 for each segment, on the device. There all is done in stream order; nothing waits.
    """
    device = tensors[0].device
    return _FASTEST.get(device, reference)(tensors, keys(device), copies)


def prepare(device: torch.device) -> None:
    """Let a kernel do it there from here on, on CUDA, where one can be had. The first time, that takes seconds.

    Raises torch.OutOfMemoryError, and once a warning that is to be an error.
    """
    if device.type == "cuda" and device not in _FASTEST:
        with _TURN:
            if device not in _FASTEST:
                try:
                    _FASTEST[device] = kernel(device) or reference
                except Warning:
                    _FASTEST[device] = reference
                    raise


def reference(tensors: Sequence[Tensor], keys: Tensor, copies: CopyTargets | None = None) -> Tensor:
    """What `fingerprints` gives and does, on any device, by plain operations of torch."""
    found = [_hashed(flat_bytes(tensor), keys) for tensor in tensors]
    if copies is not None:
        for tensor, now, target, first in zip(tensors, found, copies.targets, copies.firsts, strict=True):
            if target is not None:
                held = None if first is None or copies.held is None else copies.held[first : first + len(now)]
                _copy(flat_bytes(tensor), target, None if held is None else (now != held).any(1))
    return torch.cat(found)


@cache
def keys(device: torch.device) -> Tensor:
    """The keys of this process, on a device: a row for each hash, a word for each place."""
    return _secret().to(device)


@cache
def _secret() -> Tensor:
    return torch.frombuffer(bytearray(os.urandom(_HASHES * SEGMENT)), dtype=torch.int64).view(_HASHES, WORDS)


Hashed = Callable[[Sequence[Tensor], Tensor, CopyTargets | None], Tensor]
_FASTEST: dict[torch.device, Hashed] = {}
_TURN = Lock()


def kernel(device: torch.device) -> Hashed | None:
    """What launches the kernel there, if Triton is installed; with a warning when it does not work.

    For one, it needs a C compiler. A compiler that makes something else of it is found out here.
    """
    try:
        from ckptstore.state.devices.fingerprint_kernel import launch

        _try(launch, device)
    except ImportError:
        return None
    except torch.OutOfMemoryError:
        raise  # which says nothing about it
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, torch does the same
        warnings.warn(f"Triton does not work, fingerprints go on without it: {error!r}", stacklevel=2)
        return None
    return launch


def _try(launch: Hashed, device: torch.device) -> None:
    """Raises RuntimeError when it does not do what torch does, with whole segments and with others."""
    data = flat_bytes(keys(device))
    samples = [data, data[3 : SEGMENT + 1001], data[8 : SEGMENT - 8], data[:1]]
    held = reference([data.roll(SEGMENT // 2), *samples[1:]], keys(device))
    held[0] = reference(samples, keys(device))[0]  # so that a copy leaves that segment out

    def done(hashed: Hashed) -> list[Tensor]:
        targets = [data.new_zeros(len(sample)) for sample in samples]
        return [hashed(samples, keys(device), CopyTargets([*targets[:3], None], [0, 2, None, None], held)), *targets]

    if not all(map(torch.equal, done(launch), done(reference))):
        raise RuntimeError("it does something else than torch")


def _hashed(data: Tensor, keys: Tensor) -> Tensor:
    return torch.cat([_hashed_at_once(part, keys) for part in torch.split(data, _AT_ONCE)])


def _hashed_at_once(data: Tensor, keys: Tensor) -> Tensor:
    rest = -len(data) % SEGMENT
    filled = torch.cat([data, data.new_zeros(rest)]) if rest or _is_odd(data) else data
    halves = filled.view(torch.int32).view(-1, 1, 2 * WORDS)
    sums = (halves + keys.view(torch.int32)).view(torch.int64)
    low = sums & _HALF
    sums >>= 32
    sums &= _HALF  # the high ones: as signed numbers some were shifted to below zero
    low *= sums
    return low.sum(2)  # wraps around, as numbers modulo 2**64 do


def _is_odd(data: Tensor) -> bool:
    """Whether it does not lie where words may."""
    return bool(data.storage_offset() % 8 or data.data_ptr() % 8)


def _copy(source: Tensor, target: Tensor, new: Tensor | None) -> None:
    """Copy segments that are new, or all; which ones are is known on the device only."""
    if new is None:
        target.copy_(source)
        return
    parts = (torch.split(each, _AT_ONCE) for each in (source, target))
    for data, into, flags in zip(*parts, torch.split(new, _AT_ONCE // SEGMENT), strict=True):
        bytewise = flags.repeat_interleave(SEGMENT, output_size=len(flags) * SEGMENT)[: len(data)]
        into.copy_(torch.where(bytewise, data, into))
