"""Files of safetensors: flat, tensors only, and folders of them as Hugging Face's libraries write them.

The names in a file are those of one state dict, which stands at a name of the app state here; or of a whole app state,
and then the logical paths. Tied tensors are stored once, and the file's metadata names the others, as safetensors' own
`save_model` does it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ckptstore.catalog.records import CommitRecord
from ckptstore.errors import PathNotFound, StateError, StorageError
from ckptstore.format.manifest import Entry, TensorEntry, entry_bytes
from ckptstore.integrations.local_paths import local_path
from ckptstore.integrations.named import entries_at
from ckptstore.integrations.new_files import new_file
from ckptstore.integrations.safetensors.files import DTYPES, FORMAT, PACKED, read_tensors
from ckptstore.integrations.safetensors.layout import laid_out
from ckptstore.integrations.safetensors.names import file_names, nested
from ckptstore.operations.address import Ref
from ckptstore.operations.loading.pour import pour
from ckptstore.operations.view import ManifestView
from ckptstore.progress import ProgressCallback, meter
from ckptstore.state.paths import matches, segment
from ckptstore.store import Store

_HOLDABLE = frozenset(DTYPES.values())
_PACKED = frozenset(DTYPES[code] for code in PACKED)
_MOST_LISTED = 10
_METADATA = "__metadata__"


def export_safetensors(
    store: Store,
    step: Ref,
    file: str | os.PathLike[str],
    *,
    name: str | None = None,
    paths: str | Sequence[str] | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> None:
    """Write the tensors of a commit to a file, chunk by chunk. Strides, requires_grad and Parameter-ness are lost.

    Args:
        store: the store.
        step: the commit.
        file: a local file, which appears whole or not at all.
        name: only what is beneath this name of the app state, as its keys name it there, joined by ".": what
            `load_state_dict` takes, and the inverse of the import; by default everything, named by logical path.
        paths: globs of logical paths: only these leaves.
        overwrite: replace the file if it exists.
        progress: called with (stage, bytes done, bytes in all).

    Raises:
        StateError: there are leaves that a safetensors file can not hold, or two of one name, and names them; or more
            names than fit into a file.
        Conflict: the file exists.
        PathNotFound: a glob that selects nothing, or a name beneath which nothing is.
        StorageError, OSError: the file can not be written.
    """
    view = store.manifest(step)
    names = _names(view, name, paths)
    tied = _ties([names[path] for path in group if path in names] for group in view.manifest.aliases)
    kept = {
        path: entry
        for path, entry in view.manifest.entries.items()
        if isinstance(entry, TensorEntry) and path in names and names[path] not in tied
    }
    with new_file(Path(file), overwrite=overwrite) as temporary:
        header, starts = laid_out({names[path]: entry for path, entry in kept.items()}, {FORMAT: "pt", **tied})
        with temporary.open("r+b", buffering=0) as opened:
            put = partial(_put, Path(file), opened.fileno())
            put(0, 0, memoryview(header))
            puts = {path: partial(put, starts[names[path]]) for path in kept}
            advance = meter(progress, "checkout", sum(entry_bytes(entry) for entry in kept.values() if entry.chunks))
            pour(store._parts, kept, puts, advance=advance)  # noqa: SLF001 - what it is made of


def import_safetensors(
    store: Store,
    file: str | os.PathLike[str],
    *,
    step: int,
    metadata: Mapping[str, Any] | None = None,
    parent: Ref | None = None,
    name: str | None = None,
    progress: ProgressCallback | None = None,
) -> CommitRecord:
    """Commit the tensors of a file, or of a folder as Hugging Face's libraries write it. They are read chunk by chunk.

    Args:
        store: the store.
        file: a local file, or a folder with `model.safetensors`, or with `model.safetensors.index.json` and the files
            that this names.
        step: the new step.
        metadata: see `Store.commit`.
        parent: see `Store.commit`.
        name: put everything beneath this name of the app state, with the file's names as keys; by default these are
            logical paths, as an export without `name` wrote them.
        progress: called with (stage, bytes done, bytes in all).

    Raises:
        OSError: the file is not there, or cannot be read.
        FormatError: the file is no safetensors file, has parts of tensors or is one of several, or one name in it is
            beneath another one, without `name`; the folder has no such files, or they are not those that its index
            names. Nothing is committed.
        StepExists: the step holds another state.
        InvalidArgument: a URL, where a local file or folder is read.
    """
    tensors = read_tensors(local_path(file))
    state = nested(tensors, str(file)) if name is None else {name: tensors}
    return store._commit_alone(  # noqa: SLF001 - of one house
        state, step=step, metadata=metadata, parent=parent, allow_pickle=False, progress=progress
    )


def _names(view: ManifestView, name: str | None, paths: str | Sequence[str] | None) -> dict[str, str]:
    """Logical path → name in the file, of all leaves that it is to hold."""
    entries = entries_at(view, name, paths)
    if name is not None and segment(name) not in view.manifest.containers:
        raise PathNotFound(f"{view.name} has nothing beneath the name {name!r}, which is a leaf: select it with paths")
    names = file_names(entries, name)
    _check_holdable(view, entries, names)
    return names


def _ties(groups: Iterable[Sequence[str]]) -> dict[str, str]:
    """Name → the one that it is tied to, and that the file holds. What is named "format" must be that one."""
    kept = [(FORMAT if FORMAT in group else group[0], group) for group in groups if group]
    return {name: first for first, group in kept for name in group if name != first}


def _put(file: Path, descriptor: int, start: int, at: int, data: memoryview) -> None:
    """Write bytes that belong `at` so far behind `start`. Raises StorageError.

    Not through a mapping: where no space can be reserved, a full disk would end the process with SIGBUS.
    """
    while len(data):
        try:
            written = os.pwrite(descriptor, data, start + at)
        except OSError as error:
            raise StorageError(f"cannot write {file}: {error}") from error
        at, data = at + written, data[written:]


def _check_holdable(view: ManifestView, entries: Mapping[str, Entry], names: Mapping[str, str]) -> None:
    """Raises StateError naming every leaf that safetensors has no form for."""
    from ckptstore.state.composites import KINDS

    composite = tuple(path for path, container in view.manifest.containers.items() if container.kind in KINDS)
    refused = [
        f"  {path}: {reason}"
        for path, entry in entries.items()
        if (reason := _reason(path, names[path], entry, composite))
    ]
    if refused:
        more = [f"  … and {len(refused) - _MOST_LISTED:,} more"] if len(refused) > _MOST_LISTED else []
        details = "\n".join(refused[:_MOST_LISTED] + more)
        raise StateError(
            f"safetensors can not hold {len(refused):,} of the leaves of {view.name}: select others with paths "
            f"(--paths), or export to torch's format\n{details}"
        )


def _reason(path: str, name: str, entry: Entry, composite: Sequence[str]) -> str:
    if name == _METADATA:
        return "named as the format's own entry"
    if not isinstance(entry, TensorEntry):
        return "a plain value"
    if entry.library != "torch":
        return "a numpy array"
    if entry.dtype not in _HOLDABLE:
        return f"dtype {entry.dtype}"
    if entry.dtype in _PACKED and not entry.shape:
        return f"a {entry.dtype} without dims"
    return "a part of a sparse or quantized tensor" if any(matches(path, outer) for outer in composite) else ""
