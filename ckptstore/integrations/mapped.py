"""Tensors and values in the files of a checkpoint's folder. Tensors are mapped when their bytes are asked for."""

from __future__ import annotations

import errno
import io
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import IO, Annotated, Any, cast

import msgspec
import numpy as np
import torch
from torch import Tensor

from ckptstore.errors import FormatError, InvalidArgument
from ckptstore.format.grid import Index
from ckptstore.format.manifest import is_storable
from ckptstore.integrations.saved import load_saved
from ckptstore.state.addresses import is_backed
from ckptstore.state.arrays import Array, as_tracked
from ckptstore.state.pieces import PiecedTensor, TensorPiece

NonNegative = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]

_MOST_MAPPED = 64
_MOST_SHOWN = 9


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of a file; `label` names them in errors."""

    file: Path
    start: int
    size: int
    label: str


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """A tensor in a file: its form, without memory, and what brings it."""

    form: Tensor
    load: Callable[[], Array]


class CheckpointFiles:
    """The files of a folder.

    Args:
        folder: where they lie.
        allow_pickle: run the code of pickles.
    """

    def __init__(self, folder: Path, *, allow_pickle: bool) -> None:
        self._folder, self._allow_pickle = folder, allow_pickle
        self._mapped = lru_cache(_MOST_MAPPED)(_map)

    def place(self, leaf: str, name: str, start: int = 0, size: int | None = None) -> Place:
        """Where a leaf lies: `size` bytes of a file, or all from `start`. Raises FormatError when there are not."""
        file = self._folder / name
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise FormatError(f"{self._folder} names the file {name!r}, which is not in it: do not trust it")
        if not self._is_file(file, leaf):
            raise FormatError(f"{file} is missing: bring it from where the checkpoint was written")
        there = file.stat().st_size
        end = there if size is None else start + size
        if not start <= end <= there:
            raise FormatError(f"{file} has {there:,} bytes, of which {end:,} are needed: it was cut off")
        return Place(file, start, end - start, f"{file} at byte {start:,}, for {leaf!r},")

    def _is_file(self, file: Path, leaf: str) -> bool:
        try:
            return file.is_file()
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            description = f"a file of {len(str(file)):,} characters for {leaf!r}, which no file system holds"
            raise FormatError(f"{self._folder} names {description}: do not trust it") from None

    def value(self, place: Place) -> Any:
        """What `torch.save` wrote there. Raises FormatError."""
        with place.file.open("rb") as opened:
            return load_saved(_window(opened, place), place.label, allow_pickle=self._allow_pickle)

    def saved_tensor(self, place: Place) -> MappedTensor:
        """The dense tensor that `torch.save` wrote there. Raises FormatError."""
        with place.file.open("rb") as opened:
            found = load_saved(_window(opened, place), place.label, device="meta")
        if not isinstance(found, Tensor) or found.layout is not torch.strided:
            raise FormatError(f"{place.label} is no dense tensor")
        form, storage = found.detach(), found.untyped_storage()
        if form.is_conj() or form.is_neg():
            return MappedTensor(torch.empty_like(form.resolve_conj()), partial(self.value, place))
        at = storage._checkpoint_offset  # noqa: SLF001 - named in torch's notes on serialization
        if at is None or at + storage.nbytes() > place.size or not is_backed(form):
            raise FormatError(f"{place.label} is no whole file of torch.save")
        return MappedTensor(form, partial(self._view, place.file, place.start + at, form))

    def plain_tensor(self, place: Place, dtype: torch.dtype, shape: tuple[int, ...]) -> MappedTensor:
        """The row-major tensor whose bytes these are. Raises FormatError when they are not as many."""
        if prod(shape) * dtype.itemsize != place.size:
            raise FormatError(f"{place.label} has {place.size:,} bytes, which are no {dtype} of shape {list(shape)}")
        _require_storable(place.label, dtype, shape)
        form = torch.empty(shape, dtype=dtype, device="meta")
        return MappedTensor(form, partial(self._view, place.file, place.start, form))

    def _view(self, file: Path, at: int, form: Tensor) -> Array:
        width = form.itemsize
        strides = [stride * width for stride in form.stride()]
        first = at + form.storage_offset() * width
        return np.ndarray(tuple(form.shape), np.dtype((np.void, width)), self._mapped(file), first, strides)


def gathered(
    leaf: str,
    dtype: torch.dtype,
    shape: Index,
    pieces: Sequence[tuple[Index, Index, MappedTensor]],
    *,
    requires_grad: bool = False,
) -> PiecedTensor:
    """A tensor of pieces, each with its offsets and sizes. Raises FormatError, with `leaf`, when they do not fit it."""
    for _, sizes, mapped in pieces:
        form = mapped.form
        if (tuple(form.shape), form.dtype) != (sizes, dtype):
            raise FormatError(f"{leaf}: {form.dtype} of {list(form.shape)} is where {dtype} of {list(sizes)} should be")
    _require_storable(leaf, dtype, shape)
    whole = len(pieces) == 1 and pieces[0][1] == shape
    try:
        form = pieces[0][2].form if whole else torch.empty(shape, dtype=dtype, device="meta")
        tracked = as_tracked(form, parameter=False, requires_grad=requires_grad)
        return PiecedTensor(tracked, [_piece(offsets, sizes, mapped) for offsets, sizes, mapped in pieces])
    except (InvalidArgument, RuntimeError) as error:
        raise FormatError(f"{leaf}: {error}") from error


def _require_storable(label: str, dtype: torch.dtype, shape: Index) -> None:
    if not is_storable(dtype.itemsize, shape):
        form = f"{len(shape):,} dims" if len(shape) > _MOST_SHOWN else f"shape {list(shape)}"
        raise FormatError(f"{label}: numpy has no {dtype} of {form}")


def _piece(offsets: Index, sizes: Index, mapped: MappedTensor) -> TensorPiece:
    return TensorPiece(offsets, tuple(map(sum, zip(offsets, sizes, strict=False))), mapped.load)


def _window(opened: IO[bytes], place: Place) -> IO[bytes]:
    from torch.distributed.checkpoint.utils import _create_file_view  # a second, and safetensors need it not

    return cast(IO[bytes], _create_file_view(cast(io.IOBase, opened), place.start, place.size))


def _map(file: Path) -> mmap.mmap:
    """Read-only, since the kernel counts what may be written as memory: files larger than it could not be mapped."""
    try:
        with file.open("rb") as opened:
            return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    except (ValueError, OSError) as error:
        raise FormatError(f"{file} can not be mapped: {error}") from error
