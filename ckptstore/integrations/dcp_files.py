"""Checkpoints of torch.distributed.checkpoint (DCP), as its FileSystemWriter writes them.

DCP knows dicts with str keys and lists: of other keys it keeps the str, ties and empty dicts are lost, and a tuple
is one value.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ckptstore.catalog.base import CommitRecord
from ckptstore.errors import StateError, StorageError
from ckptstore.integrations.dcp_metadata import Keys, SavedBytes, SavedTensor, read_metadata
from ckptstore.integrations.mapped import CheckpointFiles, Place, gathered
from ckptstore.integrations.named import state_at
from ckptstore.integrations.new_files import new_folder
from ckptstore.integrations.trees import tree
from ckptstore.operations.address import Ref
from ckptstore.progress import ProgressCallback
from ckptstore.state.pieces import PiecedTensor
from ckptstore.store import Store


def export_dcp(
    store: Store,
    step: Ref,
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    paths: str | Sequence[str] | None = None,
    progress: ProgressCallback | None = None,
) -> None:
    """Write the state of a commit to a folder, as `torch.distributed.checkpoint.save` does in one process.

    Args:
        store: the store.
        step: the commit.
        folder: a new local folder, which appears whole or not at all.
        name: only what stands at this name of the app state, the inverse of the import's; by default everything.
        paths: globs of logical paths: only these leaves.
        progress: called with (stage, bytes done, bytes in all).

    Raises:
        StateError: the commit has leaves that DCP can not write, such as sparse tensors, or names that are one in DCP.
        Conflict: the folder exists.
        PathNotFound: a glob that selects nothing, or a name at which nothing is.
        PickleRefused: the commit has a leaf that is a pickle.
        StorageError, OSError: the folder can not be written.
    """
    with new_folder(Path(folder)) as temporary:
        view = store.manifest(step)
        state = state_at(store, view, name, paths, progress)
        if not isinstance(state, dict):
            raise StateError(f"cannot write {view.name} to {folder} with DCP: at the name {name!r} is no dict")
        _save(state, temporary, f"{view.name} to {folder}")


def import_dcp(
    store: Store,
    folder: str | os.PathLike[str],
    *,
    step: int,
    name: str | None = None,
    allow_pickle: bool = False,
    progress: ProgressCallback | None = None,
) -> CommitRecord:
    """Commit what a folder holds, saved by any number of ranks. Tensors are read chunk by chunk, and need no group.

    Args:
        store: the store.
        folder: a local folder.
        step: the new step.
        name: put it beneath this name of the app state; by default the folder's names are on top.
        allow_pickle: load any objects, which can run any code, and store those of unknown types as pickles.
        progress: called with (stage, bytes done, bytes in all).

    Raises:
        FormatError: no whole DCP checkpoint; files are missing or cut off, pieces of a tensor overlap or are missing;
            an object needs `allow_pickle`. Nothing is committed.
        UnsupportedLeaf: a leaf has no encoding.
        StepExists: the step holds another state.
    """
    state = _read(Path(folder), allow_pickle=allow_pickle)
    named = state if name is None else {name: state}
    return store.commit(named, step=step, allow_pickle=allow_pickle, progress=progress)


def _read(folder: Path, *, allow_pickle: bool) -> dict[str, Any]:
    saved = read_metadata(folder, allow_pickle=allow_pickle)
    files = CheckpointFiles(folder, allow_pickle=allow_pickle)

    def leaf(keys: Keys) -> Any:
        name = ".".join(map(str, keys))
        if keys in saved.tensors:
            return _tensor(files, saved.tensors[keys], folder, name)
        return files.value(_place(files, saved.values[keys], name))

    return tree(((keys, leaf(keys)) for keys in saved.order), str(folder))


def _tensor(files: CheckpointFiles, saved: SavedTensor, folder: Path, name: str) -> PiecedTensor:
    pieces = [(box.offsets, box.sizes, files.saved_tensor(_place(files, place, name))) for box, place in saved.pieces]
    return gathered(f"{folder}: {name!r}", saved.dtype, saved.shape, pieces, requires_grad=saved.requires_grad)


def _place(files: CheckpointFiles, saved: SavedBytes, name: str) -> Place:
    return files.place(name, saved.relative_path, saved.offset, saved.length)


def _save(state: dict[str, Any], folder: Path, told: str) -> None:
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.filesystem import FileSystemWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that this is one process
            save(state, storage_writer=FileSystemWriter(folder), no_dist=True)
    except CheckpointException as error:
        cause = next((failure for failure, _ in error.failures.values()), error)
        kind = StorageError if isinstance(cause, OSError) else StateError
        raise kind(f"cannot write {told} with DCP: {cause}") from error
