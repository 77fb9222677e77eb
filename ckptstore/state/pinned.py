"""Memory of the host that CUDA devices reach by themselves."""

from __future__ import annotations

import mmap
import os
import sys
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_PORTABLE = 1
"""`cudaHostRegisterPortable`: pinned for all devices."""
_WORKERS = min(8, os.cpu_count() or 1)
_PAGE = 4096


def pinned(size: int) -> Tensor:
    """As many bytes for a while, from torch's allocator; with a warning, some that devices do not reach."""
    try:
        return torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=True)
    except RuntimeError as error:
        warnings.warn(f"copies go on slowly, since the system pins no {size} bytes: {error!r}", stacklevel=2)
        return torch.empty(size, dtype=torch.uint8, device="cpu")  # to and from which CUDA copies before it returns


def kept(size: int, device: torch.device, used: torch.cuda.Event) -> Tensor:
    """As many bytes for long, pinned several times as fast; `used` comes when the device is done with them.

    CUDA's own allocation has one thread find the pages, where several do it here.
    """
    if sys.platform != "linux":
        return pinned(size)
    memory = _mapped(size)
    with ThreadPoolExecutor(_WORKERS) as pool:
        for part in np.array_split(memory[::_PAGE], _WORKERS):
            pool.submit(part.fill, 0)
    cudart = _cudart()
    with torch.cuda.device(device):
        if cudart.cudaHostRegister(memory.ctypes.data, size, _PORTABLE) != cudart.cudaError.success:
            with suppress(RuntimeError):
                torch.zeros(1, device=device)  # CUDA tells the next call once more
            return pinned(size)
    weakref.finalize(memory, _let_go, memory.ctypes.data, device, used).atexit = False
    return torch.from_numpy(memory)


if sys.platform == "linux":

    def _mapped(size: int) -> Bytes:
        """Untouched memory that no forked process gets: one that did could leave the device at pages nobody reads."""
        mapped = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        mapped.madvise(mmap.MADV_DONTFORK)
        with suppress(OSError):  # a system without huge pages
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(mapped, np.uint8)


def _let_go(address: int, device: torch.device, used: torch.cuda.Event) -> None:
    with torch.cuda.device(device):
        used.synchronize()
        _cudart().cudaHostUnregister(address)


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]
