"""Snapshots of torchsnapshot, which need not be installed.

What was sharded is one tensor here, and what was replicated is there once, both on top. What each of several ranks had
for itself is beneath `ranks` and its number: the logical path of torchsnapshot's `1/rng/rng_state` is
`ranks/1/rng/rng_state`. A list of which a part only was replicated is a dict by place in both.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ckptstore.catalog.records import CommitRecord
from ckptstore.errors import FormatError
from ckptstore.integrations.snapshot_leaves import SnapshotLeaves
from ckptstore.integrations.snapshot_manifest import (
    ContainerEntry,
    DictEntry,
    Entries,
    LeafEntry,
    ListEntry,
    OrderedDictEntry,
    ShardedTensorEntry,
    escaped,
    read_snapshot,
)
from ckptstore.operations.address import Ref
from ckptstore.progress import ProgressCallback
from ckptstore.store import Store

_RANKS = "ranks"


def import_torchsnapshot(
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
    """Commit a snapshot, taken by any number of ranks. Tensors are read chunk by chunk, and need no group.

    Args:
        store: the store.
        folder: a local folder.
        step: the new step.
        metadata: see `Store.commit`.
        parent: see `Store.commit`.
        name: put it beneath this name of the app state; by default the snapshot's names are on top.
        allow_pickle: load any objects, which can run any code, and store those of unknown types as pickles.
        progress: called with (stage, bytes done, bytes in all).

    Raises:
        FormatError: no whole snapshot; files are missing or cut off, pieces of a tensor overlap or are missing;
            an object needs `allow_pickle`. Nothing is committed.
        UnsupportedLeaf: a leaf has no encoding.
        StepExists: the step holds another state.
    """
    state = _read(Path(folder), allow_pickle=allow_pickle)
    named = state if name is None else {name: state}
    return store._commit_alone(  # noqa: SLF001 - of one house
        named, step=step, metadata=metadata, parent=parent, allow_pickle=allow_pickle, progress=progress
    )


def _read(folder: Path, *, allow_pickle: bool) -> dict[str, Any]:
    ranks = read_snapshot(folder)
    leaves = SnapshotLeaves(folder, allow_pickle=allow_pickle)
    everything = _merged(ranks)
    shared = everything if len(ranks) == 1 else {path: it for path, it in everything.items() if _is_shared(it)}
    state = _tree(shared, everything, leaves, str(folder))
    own = {rank: _own(entries) for rank, entries in enumerate(ranks)} if len(ranks) > 1 else {}
    if any(own.values()):
        if _RANKS in state:
            raise FormatError(f"{folder} has the name {_RANKS!r}, beneath which the ranks' own values would be")
        told = {rank: f"{folder}: rank {rank}" for rank in own}
        state[_RANKS] = {rank: _tree(found, ranks[rank], leaves, told[rank]) for rank, found in own.items() if found}
    return state


def _is_shared(entry: LeafEntry | ContainerEntry) -> bool:
    """Of several ranks, or without anything that could be one rank's."""
    return isinstance(entry, ContainerEntry | ShardedTensorEntry) or entry.replicated


def _own(entries: Entries) -> dict[str, LeafEntry | ContainerEntry]:
    """A rank's own leaves, and the containers on the way to them."""
    leaves = {path: entry for path, entry in entries.items() if not _is_shared(entry)}
    above = {path[:at] for path in leaves for at, character in enumerate(path) if character == "/"}
    return leaves | {path: entry for path, entry in entries.items() if path in above}


def _merged(ranks: Sequence[Entries]) -> dict[str, LeafEntry | ContainerEntry]:
    """The entries of all ranks: shards come together, as do keys of dicts; otherwise the first rank's."""
    merged: dict[str, LeafEntry | ContainerEntry] = {}
    for entries in ranks:
        for path, entry in entries.items():
            known = merged.setdefault(path, entry)
            if isinstance(entry, ShardedTensorEntry) and isinstance(known, ShardedTensorEntry) and known is not entry:
                merged[path] = ShardedTensorEntry([*known.shards, *entry.shards])
            elif isinstance(entry, DictEntry) and isinstance(known, DictEntry):
                merged[path] = type(known)(list(dict.fromkeys([*known.keys, *entry.keys])))
    return merged


def _tree(entries: Entries, whole: Entries, leaves: SnapshotLeaves, source: str) -> dict[str, Any]:
    """The state of some of the entries of a whole."""
    _check_places(whole, source)
    places = _places(whole)
    values = {path: leaves.read(it, path) for path, it in entries.items() if not isinstance(it, ContainerEntry)}
    containers = {path: it for path, it in entries.items() if isinstance(it, ContainerEntry)}
    for path in sorted(containers, key=lambda path: path.count("/"), reverse=True):
        made = _container(path, containers[path], places.get(path, []), values)
        if made is not None:
            values[path] = made
    return {unquote(path): value for path, value in values.items() if "/" not in path}


def _check_places(entries: Entries, source: str) -> None:
    """Raises FormatError for what is in no container, which would be lost."""
    known = {path: set(map(escaped, it.keys)) for path, it in entries.items() if isinstance(it, DictEntry)}
    for path in entries:
        above, _, last = path.rpartition("/")
        in_list = isinstance(entries.get(above), ListEntry) and last.isdecimal() and last == str(int(last))
        if above and not in_list and last not in known.get(above, ()):
            raise FormatError(f"{source}: {path!r} is in no container of the snapshot")


def _places(entries: Entries) -> dict[str, list[int]]:
    """List → places of its items."""
    found: dict[str, list[int]] = {}
    for path in entries:
        above, _, last = path.rpartition("/")
        if isinstance(entries.get(above), ListEntry):
            found.setdefault(above, []).append(int(last))
    return {path: sorted(items) for path, items in found.items()}


def _container(path: str, entry: ContainerEntry, places: Sequence[int], values: Mapping[str, Any]) -> Any:
    """A container of the values that are there; None when nothing of what it had is."""
    keys: Sequence[Any] = entry.keys if isinstance(entry, DictEntry) else places
    held = {key: values[child] for key in keys if (child := f"{path}/{escaped(key)}") in values}
    if keys and not held:
        return None
    make: Callable[[Any], Any] = OrderedDict if isinstance(entry, OrderedDictEntry) else dict
    if isinstance(entry, ListEntry) and list(held) == list(range(len(keys))):
        return list(held.values())
    return make(held)
