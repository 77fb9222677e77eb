"""Files of `torch.save`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptstore.catalog.records import CommitRecord
from ckptstore.errors import InvalidArgument, StorageError
from ckptstore.integrations.local_paths import local_path
from ckptstore.integrations.named import state_at
from ckptstore.integrations.new_files import new_file
from ckptstore.integrations.saved import load_saved
from ckptstore.operations.address import Ref
from ckptstore.progress import ProgressCallback
from ckptstore.store import Store


def export_torch(
    store: Store,
    step: Ref,
    file: str | os.PathLike[str],
    *,
    name: str | None = None,
    paths: str | Sequence[str] | None = None,
    allow_pickle: bool = False,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> None:
    """Write the state of a commit to a file, as `torch.save` does, which needs all of it in memory.

    Args:
        store: the store.
        step: the commit.
        file: a local file, which appears whole or not at all.
        name: only what stands at this name of the app state, the inverse of the import's; by default everything.
        paths: globs of logical paths: only these leaves.
        allow_pickle: load leaves that are pickles, which can run any code, and write them as such.
        overwrite: replace the file if it exists.
        progress: called with (stage, bytes done, bytes in all).

    Raises:
        Conflict: the file exists.
        PathNotFound: a glob that selects nothing, or a name at which nothing is.
        PickleRefused: a leaf is a pickle, which needs `allow_pickle`.
        StorageError, OSError: the file can not be written.
    """
    import torch

    with new_file(Path(file), overwrite=overwrite) as temporary:
        state = state_at(store, store.manifest(step), name, paths, progress, allow_pickle=allow_pickle)
        handled = sys.exception()
        try:
            with temporary.open("wb") as opened:
                torch.save(state, opened)
        except RuntimeError as error:  # torch may report what came of that which ended the writing
            cause = error.__context__
            if cause is None or cause is handled:  # its own error, and what the caller is dealing with
                cause = error
            if not isinstance(cause, RuntimeError | OSError):
                raise cause from None
            raise StorageError(f"cannot write {file}: {cause}") from error


def import_torch(
    store: Store,
    file: str | os.PathLike[str],
    *,
    step: int,
    metadata: Mapping[str, Any] | None = None,
    parent: Ref | None = None,
    name: str | None = None,
    allow_pickle: bool = False,
    progress: ProgressCallback | None = None,
) -> CommitRecord:
    """Commit what a file holds.

    Args:
        store: the store.
        file: a local file.
        step: the new step.
        metadata: see `Store.commit`.
        parent: see `Store.commit`.
        name: put it beneath this name of the app state; by default the file holds a dict, whose names are on top.
        allow_pickle: load any objects, which can run any code, and store those of unknown types as pickles.
        progress: called with (stage, bytes done, bytes in all).

    Raises:
        OSError: the file is not there, or cannot be read.
        FormatError: no file of `torch.save`, or one with objects that need `allow_pickle`.
        InvalidArgument: the file holds no dict with names, and no `name` was given; or it is a URL.
        UnsupportedLeaf: a leaf has no encoding.
        StepExists: the step holds another state.
    """
    with local_path(file).open("rb") as opened:
        state = load_saved(opened, str(file), allow_pickle=allow_pickle)
    if name is not None:
        state = {name: state}
    elif not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise InvalidArgument(f"{file} holds no dict with names: give a name for what it holds (--name)")
    return store._commit_alone(  # noqa: SLF001 - of one house
        state, step=step, metadata=metadata, parent=parent, allow_pickle=allow_pickle, progress=progress
    )
