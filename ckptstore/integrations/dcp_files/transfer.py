"""Checkpoints of torch.distributed.checkpoint (DCP), as its FileSystemWriter writes them.

DCP knows dicts with str keys and lists: of other keys it keeps the str, ties and empty dicts are lost, and a tuple
is one value.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptstore.catalog.records import CommitRecord
from ckptstore.errors import StateError
from ckptstore.format.grid import Index
from ckptstore.format.manifest import TensorEntry, entry_bytes
from ckptstore.integrations.dcp_files.metadata import SavedBytes, SavedTensor, read_metadata
from ckptstore.integrations.dcp_files.packed import PackedTensors
from ckptstore.integrations.dcp_files.saving import Tensors, save_with
from ckptstore.integrations.local_paths import local_path
from ckptstore.integrations.mapped import CheckpointFiles, MappedTensor, Place, gathered
from ckptstore.integrations.named import built_at, entries_at
from ckptstore.integrations.new_files import new_folder
from ckptstore.integrations.trees import KeyPath, tree
from ckptstore.operations.address import Ref
from ckptstore.operations.loading.load import load_arrays, load_values
from ckptstore.operations.view import ManifestView
from ckptstore.progress import ProgressCallback, meter
from ckptstore.state.paths import split
from ckptstore.state.pieces import PiecedTensor
from ckptstore.store import Store

_TAKEN_APART = frozenset({"dict", "OrderedDict", "defaultdict", "list"})
"""Containers that DCP takes apart. What is in others is a part of one value for it."""


def export_dcp(
    store: Store,
    step: Ref,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    paths: str | Sequence[str] | None = None,
    allow_pickle: bool = False,
    progress: ProgressCallback | None = None,
) -> None:
    """Write the state of a commit to a folder, as `torch.distributed.checkpoint.save` does in one process.

    Tensors are read when they are written, for one file of some 64 MiB, with whole tensors, after the other. What DCP
    takes for one value, as a tuple with tensors or a numpy array, is held all the while.

    Args:
        store: the store.
        step: the commit.
        folder: a new local folder, which appears whole or not at all.
        name: only what stands at this name of the app state, the inverse of the import's; by default everything.
        paths: globs of logical paths: only these leaves.
        allow_pickle: load leaves that are pickles, which can run any code, and write them as such.
        progress: called with (stage, bytes done, bytes in all).

    Raises:
        StateError: the commit has leaves that DCP can not write, such as sparse tensors, or names that are one in DCP.
        Conflict: the folder exists.
        PathNotFound: a glob that selects nothing, or a name at which nothing is.
        PickleRefused: a leaf is a pickle, which needs `allow_pickle`.
        StorageError, OSError: the folder can not be written.
    """
    with new_folder(Path(folder)) as temporary:
        view = store.manifest(step)
        tensors, state = _with_forms(store, view, name, paths, progress, allow_pickle=allow_pickle)
        if not isinstance(state, dict):
            raise StateError(f"cannot write {view.name} to {folder} with DCP: at the name {name!r} is no dict")
        save_with(tensors, state, temporary, f"{view.name} to {folder}")


def import_dcp(
    store: Store,
    folder: str | os.PathLike[str],
    *,
    step: int,
    metadata: Mapping[str, Any] | None = None,
    parent: Ref | None = None,
    name: str | None = None,
    allow_pickle: bool = False,
    progress: ProgressCallback | None = None,
) -> CommitRecord:
    """Commit what a folder holds, saved by any number of ranks. Tensors are read chunk by chunk, and need no group.

    Args:
        store: the store.
        folder: a local folder.
        step: the new step.
        metadata: see `Store.commit`.
        parent: see `Store.commit`.
        name: put it beneath this name of the app state; by default the folder's names are on top.
        allow_pickle: load any objects, which can run any code, and store those of unknown types as pickles.
        progress: called with (stage, bytes done, bytes in all).

    Raises:
        FormatError: no whole DCP checkpoint; files are missing or cut off, pieces of a tensor overlap or are missing;
            an object needs `allow_pickle`. Nothing is committed.
        UnsupportedLeaf: a leaf has no encoding.
        StepExists: the step holds another state.
        InvalidArgument: a URL, where a local folder is read.
    """
    state = _read(local_path(folder), allow_pickle=allow_pickle)
    named = state if name is None else {name: state}
    return store._commit_alone(  # noqa: SLF001 - of one house
        named, step=step, metadata=metadata, parent=parent, allow_pickle=allow_pickle, progress=progress
    )


def _with_forms(
    store: Store,
    view: ManifestView,
    name: str | None,
    paths: str | Sequence[str] | None,
    progress: ProgressCallback | None,
    *,
    allow_pickle: bool,
) -> tuple[Tensors, Any]:
    """A state of which DCP is to ask for tensors when it writes them; what else it has is loaded."""
    chunks, manifest = store._parts, view.manifest  # noqa: SLF001 - what it is made of
    entries = entries_at(view, name, paths)
    arrays = {path: entry for path, entry in entries.items() if isinstance(entry, TensorEntry)}
    apart = {path for path, container in manifest.containers.items() if container.kind in _TAKEN_APART}
    asked = {
        path: entry for path, entry in arrays.items() if entry.library == "torch" and apart.issuperset(_above(path))
    }
    others = {path: entry for path, entry in arrays.items() if path not in asked}
    sizes = {path: entry_bytes(entry) for path, entry in arrays.items() if entry.chunks}
    advance = meter(progress, "checkout", sum(sizes.values()))
    tensors = Tensors(chunks, asked, advance)
    leaves = load_values(chunks, entries, allow_pickle=allow_pickle, budget=None)
    leaves |= load_arrays(chunks, others, {}, same=manifest.aliases, budget=None)
    advance(sum(sizes.get(path, 0) for path in others))
    return tensors, built_at(view, name, paths, leaves | tensors.forms)


def _above(path: str) -> Iterator[str]:
    """The containers that a leaf is in."""
    parts = split(path)
    return ("/".join(parts[:depth]) for depth in range(len(parts)))


def _read(folder: Path, *, allow_pickle: bool) -> dict[str, Any]:
    saved = read_metadata(folder, allow_pickle=allow_pickle)
    files = CheckpointFiles(folder, allow_pickle=allow_pickle)
    packed = PackedTensors(files)

    def leaf(keys: KeyPath) -> Any:
        name = ".".join(map(str, keys))
        if keys in saved.tensors:
            return _tensor(files, packed, saved.tensors[keys], folder, name)
        return files.value(_place(files, saved.values[keys], name))

    return tree(((keys, leaf(keys)) for keys in saved.order), str(folder))


def _tensor(files: CheckpointFiles, packed: PackedTensors, saved: SavedTensor, folder: Path, name: str) -> PiecedTensor:
    def piece(place: SavedBytes, offsets: Index) -> MappedTensor:
        return packed.tensor(place, name, offsets) or files.saved_tensor(_place(files, place, name))

    pieces = [(box.offsets, box.sizes, piece(place, box.offsets)) for box, place in saved.pieces]
    return gathered(f"{folder}: {name!r}", saved.dtype, saved.shape, pieces, requires_grad=saved.requires_grad)


def _place(files: CheckpointFiles, saved: SavedBytes, name: str) -> Place:
    return files.place(name, saved.relative_path, saved.offset, saved.length)
