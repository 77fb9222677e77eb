"""One leaf of a commit, whole or in part, or everything beneath a container."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from msgspec.structs import replace
from torch import Tensor

from ckptstore.chunkstore import ChunkStore
from ckptstore.compiling import uncompiled
from ckptstore.errors import InvalidArgument
from ckptstore.format.manifest import TensorEntry
from ckptstore.format.selection import Selection, everything, select
from ckptstore.operations.loading.load import Filling, fill, load_arrays, load_values
from ckptstore.operations.view import ManifestView
from ckptstore.state.addresses import missing_memory
from ckptstore.state.arrays import Array
from ckptstore.state.casts import misfit_with_cast
from ckptstore.state.composites import is_dense
from ckptstore.state.new_arrays import allocate, finish
from ckptstore.state.shards import is_sharded, part_of, regions_of
from ckptstore.state.tensors import misfit_of
from ckptstore.state.unflatten import unflatten

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


@uncompiled
def read(
    chunks: ChunkStore, view: ManifestView, path: Any, index: Any, out: Any, *, allow_pickle: bool, budget: int | None
) -> Any:
    """What is at `path`; see `Store.read`."""
    if not isinstance(path, str):
        kind = type(path).__name__
        raise InvalidArgument(f"the path is a {kind}: give one as text, or several to checkout(paths=…)")
    entry = view.manifest.entries.get(path)
    if isinstance(entry, TensorEntry):
        return _read_array(chunks, entry, path, index, out, budget)
    if entry is None and path not in view.manifest.containers:
        raise view.unknown(path)
    if index is not ... or out is not None:
        raise InvalidArgument(f"{path!r} is no dense array: `index` and `out` are for those")
    return _read_tree(chunks, view, path, allow_pickle=allow_pickle, budget=budget)


def _read_tree(chunks: ChunkStore, view: ManifestView, path: str, *, allow_pickle: bool, budget: int | None) -> Any:
    manifest = view.manifest
    prefix = f"{path}/" if path else ""
    entries = {name: entry for name, entry in manifest.entries.items() if name == path or name.startswith(prefix)}
    leaves = load_values(chunks, entries, allow_pickle=allow_pickle, budget=budget)
    leaves |= load_arrays(chunks, entries, {}, same=manifest.aliases, budget=budget)
    return unflatten(manifest.containers, leaves, root=path, allow_pickle=allow_pickle)


def _read_array(chunks: ChunkStore, entry: TensorEntry, path: str, index: Any, out: Any, budget: int | None) -> Array:
    if is_sharded(out):
        if index is not ...:
            raise InvalidArgument(
                f"`out` does not fit: {path}: a DTensor takes its part of the whole: leave out `index`"
            )
        return _read_part(chunks, entry, path, out, budget)
    if out is None:
        return read_arrays(chunks, {path: entry}, index, budget=budget)[path]
    selection = _selected(entry, index)
    _check_out(path, replace(entry, shape=_shape(selection)), out)
    fill(chunks, [Filling(entry, _with_dims(out, selection), selection, path)], budget=budget)
    return out  # type: ignore[no-any-return]


def read_arrays(
    chunks: ChunkStore, entries: Mapping[str, TensorEntry], index: Any, *, budget: int | None
) -> dict[str, Array]:
    """The same elements of several arrays, read together."""
    jobs = [_job(entry, path, index) for path, entry in entries.items()]
    fill(chunks, jobs, budget=budget)
    if index is ...:
        return {job.label: finish(job.label, job.target, job.entry) for job in jobs}
    return {job.label: job.target.reshape(_shape(job.selection)) for job in jobs}


def _job(entry: TensorEntry, path: str, index: Any) -> Filling:
    """An array that is to be filled with the selected elements."""
    selection = _selected(entry, index)
    order = entry.order if index is ... else None
    return Filling(entry, allocate(path, replace(entry, shape=selection.full_shape, order=order)), selection, path)


def _selected(entry: TensorEntry, index: Any) -> Selection:
    return everything(entry.shape) if index is ... else select(entry.shape, index)


def _shape(selection: Selection) -> tuple[int, ...]:
    return tuple(len(chosen) for dim, chosen in enumerate(selection.ranges) if dim not in selection.dropped)


def _read_part(chunks: ChunkStore, entry: TensorEntry, path: str, out: DTensor, budget: int | None) -> DTensor:
    """The DTensor, whose part on this process is filled."""
    part, regions = part_of(out), regions_of(out, path)
    _check_out(path, entry, out)
    _check_out(path, replace(entry, shape=tuple(part.shape), order=None), part)
    load_arrays(chunks, {path: entry}, {path: part}, same=(), regions={path: regions}, budget=budget)
    return out


def _check_out(path: str, entry: TensorEntry, out: object) -> None:
    misfit = _misfit(path, out)
    if misfit is None:
        misfit = misfit_of(path, entry, out)
        if misfit is not None and misfit_with_cast(path, entry, out, allow_cast=True) is None:
            misfit += ": checkout(into=…, paths=…, allow_cast=True) casts it"
    if misfit is not None:
        raise InvalidArgument(f"`out` does not fit: {misfit}")


def _misfit(path: str, out: object) -> str | None:
    if isinstance(out, Tensor) and not is_dense(out):
        return f"{path}: the target is no dense tensor, or has no data: {out.layout} on {out.device}"
    if isinstance(out, Tensor) and not is_sharded(out) and (missing := missing_memory(out)):
        return f"{path}: the target is {': '.join(missing)}"
    if isinstance(out, np.ma.MaskedArray | np.matrix):
        return f"{path}: the target is a {type(out).__name__}: give the plain array beneath it"
    return None


def _with_dims(out: Array, selection: Selection) -> Array:
    """A view of `out` that has the dropped dims again, of extent 1."""
    for dim in sorted(selection.dropped):
        out = out.detach().unsqueeze(dim) if isinstance(out, Tensor) else np.expand_dims(out, dim)
    return out
