"""Files of `torch.save`. They are read with `weights_only=True`, which can not run code; beside what torch itself
allows then, numpy's arrays and the standard library's plain values are let in, so that an export can be imported.
"""

from __future__ import annotations

import codecs
import os
import re
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta, timezone
from pathlib import Path, PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import Any

from ckptstore.catalog.base import CommitRecord
from ckptstore.errors import FormatError, InvalidArgument, StorageError
from ckptstore.integrations.new_files import new_file
from ckptstore.operations.address import Ref
from ckptstore.progress import ProgressCallback
from ckptstore.store import Store

_REFUSED_TYPE = re.compile(r"GLOBAL (\S+) was not an allowed global")


def export_torch(
    store: Store,
    step: Ref,
    file: str | os.PathLike[str],
    *,
    paths: str | Sequence[str] | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> None:
    """Write the state of a commit to a file, as `torch.save` does.

    Args:
        store: the store.
        step: the commit.
        file: a local file, which appears whole or not at all.
        paths: globs of logical paths: only these leaves.
        overwrite: replace the file if it exists.
        progress: called with (stage, bytes done, bytes in all).

    Raises:
        Conflict: the file exists.
        PathNotFound: a glob that selects nothing.
        PickleRefused: the commit has a leaf that is a pickle.
        StorageError, OSError: the file can not be written.
    """
    import torch

    with new_file(Path(file), overwrite=overwrite) as temporary:
        state = store.checkout(step, paths=paths, progress=progress)
        try:
            torch.save(state, temporary)
        except RuntimeError as error:
            raise StorageError(f"cannot write {file}: {error}") from error


def import_torch(
    store: Store,
    file: str | os.PathLike[str],
    *,
    step: int,
    name: str | None = None,
    progress: ProgressCallback | None = None,
) -> CommitRecord:
    """Commit what a file holds.

    Args:
        store: the store.
        file: a local file.
        step: the new step.
        name: put it beneath this name of the app state; by default the file holds a dict, whose names are on top.
        progress: called with (stage, bytes done, bytes in all).

    Raises:
        FormatError: no file of `torch.save`, or one with objects that `weights_only` refuses.
        InvalidArgument: the file holds no dict with names, and no `name` was given.
        UnsupportedLeaf: a leaf has no encoding.
        StepExists: the step holds another state.
    """
    state = _read(Path(file))
    if name is not None:
        state = {name: state}
    elif not isinstance(state, dict) or not all(isinstance(key, str) for key in state):
        raise InvalidArgument(f"{file} holds no dict with names: give a name for what it holds (--name)")
    return store.commit(state, step=step, progress=progress)


def _read(file: Path) -> Any:
    import torch

    with file.open("rb") as opened:
        try:
            with torch.serialization.safe_globals(_plain_classes()):
                return torch.load(opened, map_location="cpu", weights_only=True)
        except Exception as error:  # whatever the bytes of a foreign file make its reader raise
            refused = _REFUSED_TYPE.search(str(error))
            if refused:
                told = f"holds a {refused[1]}, which weights_only=True refuses: save tensors and plain values only"
            else:
                told = f"is no whole file of torch.save ({type(error).__name__})"
            raise FormatError(f"{file} {told}") from error


def _plain_classes() -> list[Any]:
    """What pickled plain values name. None of it does more than hold what it is given."""
    import numpy as np

    makers = [np.ones(1).__reduce__()[0], np.float64(1).__reduce__()[0], codecs.encode]
    dtypes = {type(np.dtype(code)) for code in np.typecodes["All"] if code != "O"}
    paths = (PosixPath, PurePosixPath, PureWindowsPath, WindowsPath)
    times = (date, datetime, time, timedelta, timezone)
    plain = (frozenset, range, slice)
    return [*makers, np.ndarray, np.dtype, *dtypes, *paths, *times, *plain]
