"""Files of safetensors: flat, tensors only. A tensor's name there is its logical path here.

Tied tensors are stored once, and the file's metadata names the others, as safetensors' own `save_model` does it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ckptstore.catalog.base import CommitRecord
from ckptstore.errors import CkptStoreError, FormatError, StateError, StorageError
from ckptstore.format.manifest import Entry, TensorEntry
from ckptstore.integrations.new_files import new_file
from ckptstore.operations.address import Ref
from ckptstore.operations.paths import as_globs, chosen, require_matches
from ckptstore.operations.view import ManifestView
from ckptstore.progress import ProgressCallback
from ckptstore.state.paths import matches, parse, segment, split
from ckptstore.store import Store

_DTYPES = frozenset(
    {
        *("bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
        *("bfloat16", "float16", "float32", "float64", "complex64"),
        *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    }
)
_MOST_TOLD = 10
_FORMAT = "format"
_METADATA = "__metadata__"


def export_safetensors(
    store: Store,
    step: Ref,
    file: str | os.PathLike[str],
    *,
    paths: str | Sequence[str] | None = None,
    overwrite: bool = False,
    progress: ProgressCallback | None = None,
) -> None:
    """Write the tensors of a commit to a file. Strides, requires_grad and Parameter-ness are lost.

    Args:
        store: the store.
        step: the commit.
        file: a local file, which appears whole or not at all.
        paths: globs of logical paths: only these leaves.
        overwrite: replace the file if it exists.
        progress: called with (stage, bytes done, bytes in all).

    Raises:
        StateError: the commit has leaves that a safetensors file can not hold; names them.
        Conflict: the file exists.
        PathNotFound: a glob that selects nothing.
        StorageError, OSError: the file can not be written.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file
    from torch import Tensor

    from ckptstore.state.tensors import TensorLeaf
    from ckptstore.state.tree import flatten

    _check_holdable(store.manifest(step), as_globs(paths))
    with new_file(Path(file), overwrite=overwrite) as temporary:
        flat = flatten(store.checkout(step, paths=paths, progress=progress))
        tied = {path: group[0] for group in flat.aliases for path in group[1:]}
        tensors = {
            path: leaf.tensor.detach().contiguous()
            for path, leaf in flat.leaves.items()
            if isinstance(leaf, TensorLeaf) and isinstance(leaf.tensor, Tensor) and path not in tied
        }
        try:
            save_file(tensors, temporary, metadata={_FORMAT: "pt", **tied})
        except SafetensorError as error:
            raise StorageError(f"cannot write {file}: {error}") from error


def import_safetensors(
    store: Store,
    file: str | os.PathLike[str],
    *,
    step: int,
    name: str | None = None,
    progress: ProgressCallback | None = None,
) -> CommitRecord:
    """Commit the tensors of a file. Names with "/" are logical paths, as an export wrote them.

    Args:
        store: the store.
        file: a local file.
        step: the new step.
        name: put everything beneath this name of the app state; by default the file's names are on top.
        progress: called with (stage, bytes done, bytes in all).

    Raises:
        FormatError: the file is no safetensors file, or one name in it is beneath another one.
        StepExists: the step holds another state.
    """
    state = nested(_read(Path(file)), str(file))
    return store.commit(state if name is None else {name: state}, step=step, progress=progress)


def nested(tensors: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Tensors by logical path as nested dicts. Raises FormatError when a tensor is beneath a tensor."""
    state: dict[str, Any] = {}
    for path, tensor in tensors.items():
        *inner, last = _keys(path)
        node = state
        for key in inner:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                raise FormatError(f"{file}: {path!r} is beneath another tensor, so names are no paths here: rename it")
        if last in node:
            raise FormatError(f"{file}: other tensors are beneath {path!r}, so names are no paths here: rename it")
        node[last] = tensor
    return state


def _keys(path: str) -> list[Any]:
    """The keys on the way, of which the first one is a name."""
    top, *rest = split(path) or ("",)
    key = _key(top)
    return [key if isinstance(key, str) else top, *map(_key, rest)]


def _key(part: str) -> Any:
    """The key of a segment; what is the segment of no key stands for itself."""
    from ckptstore.state.values import decode

    try:
        encoded = parse(part)
        key = decode(encoded, part)
        hash(key)
    except (CkptStoreError, TypeError):
        return part
    return key if segment(encoded) == part else part


def _read(file: Path) -> dict[str, Any]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework="pt") as opened:
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no dict
            notes = opened.metadata() or {}
    except SafetensorError as error:
        raise FormatError(f"{file} is no whole safetensors file: {error}") from error
    tied = {name: tensors[kept] for name, kept in notes.items() if kept in tensors and name != _FORMAT}
    return tied | tensors


def _check_holdable(view: ManifestView, paths: Sequence[str] | None) -> None:
    """Raises StateError naming every selected leaf that safetensors has no form for."""
    from ckptstore.state.composites import KINDS

    if paths is not None:
        require_matches([*view.manifest.entries, *view.manifest.containers], paths, view.name)
    composite = tuple(path for path, container in view.manifest.containers.items() if container.kind in KINDS)
    refused = [
        f"  {path}: {reason}"
        for path, entry in chosen(view.manifest.entries, paths).items()
        if (reason := _reason(path, entry, composite))
    ]
    if refused:
        more = [f"  … and {len(refused) - _MOST_TOLD:,} more"] if len(refused) > _MOST_TOLD else []
        told = "\n".join(refused[:_MOST_TOLD] + more)
        raise StateError(
            f"safetensors can not hold {len(refused):,} of the leaves of {view.name}: select others with paths "
            f"(--paths), or export to torch's format\n{told}"
        )


def _reason(path: str, entry: Entry, composite: Sequence[str]) -> str:
    if path == _METADATA:
        return "named as the format's own entry"
    if not isinstance(entry, TensorEntry):
        return "a plain value"
    if entry.library != "torch":
        return "a numpy array"
    if entry.dtype not in _DTYPES:
        return f"dtype {entry.dtype}"
    return "a part of a sparse or quantized tensor" if any(matches(path, outer) for outer in composite) else ""
