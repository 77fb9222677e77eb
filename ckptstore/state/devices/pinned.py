"""Memory of the host that CUDA devices reach by themselves."""

from __future__ import annotations

import mmap
import os
import sys
import warnings
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ckptstore.errands import uninterrupted
from ckptstore.state.kept import Bytes, fault

_PORTABLE = 1
"""`cudaHostRegisterPortable`: pinned for all devices."""
_WIPE_ON_FORK = 18
"""Linux's `MADV_WIPEONFORK`, which Python does not name."""
_WORKERS = min(8, os.cpu_count() or 1)
_AT_ONCE = 8 << 20


def pinned(size: int) -> Tensor:
    """As many bytes for a while, from torch's allocator; with a warning, some that devices do not reach."""
    try:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
    except RuntimeError as error:
        warnings.warn(f"copies go on slowly, since the system pins no {size} bytes: {error!r}", stacklevel=2)
        return torch.empty(size, dtype=torch.uint8, device="cpu")  # to and from which CUDA copies before it returns


def lasting(size: int, device: torch.device, wait: Callable[[], None]) -> Tensor:
    """As many bytes for long, which take less time to pin; `wait` returns once the device is done with them.

    CUDA's own allocation has one thread find the pages, where several do it here.
    """
    found = uninterrupted(partial(_registered, size, device, wait))
    return pinned(size) if found is None else found


def _registered(size: int, device: torch.device, wait: Callable[[], None]) -> Tensor | None:
    """None where the system refuses that."""
    memory = _mapped(size)
    if memory is None:
        return None
    with suppress(RuntimeError), ThreadPoolExecutor(_WORKERS) as pool:  # if no thread begins, CUDA finds the pages
        pool.map(fault, [memory[at : at + _AT_ONCE] for at in range(0, size, _AT_ONCE)])
    cudart = _cudart()
    with torch.cuda.device(device):
        if cudart.cudaHostRegister(memory.ctypes.data, size, _PORTABLE) != cudart.cudaError.success:
            with suppress(RuntimeError):
                torch.zeros(1, device=device).add_(1)  # CUDA reports it to the next call once more
            return None
    weakref.finalize(memory, _let_go, memory.base, memory.ctypes.data, device, wait).atexit = False
    return torch.from_numpy(memory)


def _mapped(size: int) -> Bytes | None:
    """Untouched memory, whose content forked processes do not get: sharing it until one of them writes could leave the
    device at pages that are the other's.
    """
    if sys.platform != "linux":
        return None
    try:
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapped.madvise(_WIPE_ON_FORK)
    except OSError:
        return None
    with suppress(OSError):  # a system without huge pages
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(mapped, np.uint8)


def _let_go(mapped: object, address: int, device: torch.device, wait: Callable[[], None]) -> None:
    """What is `mapped` stays until that is done, whoever interrupts: before somebody else is given the addresses."""
    uninterrupted(partial(_unregister, mapped, address, device, wait))


def _unregister(_: object, address: int, device: torch.device, wait: Callable[[], None]) -> None:
    with torch.cuda.device(device):
        try:
            wait()
        finally:
            _cudart().cudaHostUnregister(address)


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
