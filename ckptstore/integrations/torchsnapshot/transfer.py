"""Snapshots of torchsnapshot, which need not be installed.

What was sharded is one tensor here, and what was replicated is there once, as are plain values that all ranks had
alike. What else several ranks had is each one's own, as in a commit of theirs, at the path that torchsnapshot gives it,
`1/rng/rng_state`. So is a list of which any item is.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ckptstore.catalog.records import CommitRecord
from ckptstore.errors import FormatError
from ckptstore.integrations.local_paths import local_path
from ckptstore.integrations.torchsnapshot.leaves import SnapshotLeaves
from ckptstore.integrations.torchsnapshot.manifest import (
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
from ckptstore.state.paths import is_within, root_of
from ckptstore.store import Store


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
        InvalidArgument: a URL, where a local folder is read.
    """
    states = _read(local_path(folder), allow_pickle=allow_pickle)
    state, *own = states if name is None else [{name: each} for each in states]
    return store._commit_alone(  # noqa: SLF001 - of one house
        state, step=step, metadata=metadata, parent=parent, allow_pickle=allow_pickle, progress=progress, own=own
    )


def _read(folder: Path, *, allow_pickle: bool) -> list[dict[str, Any]]:
    """What all ranks have, and then what each has for itself, if any has something."""
    ranks = read_snapshot(folder)
    leaves = SnapshotLeaves(folder, allow_pickle=allow_pickle)
    everything = _merged(ranks)
    roots = _own_roots(ranks) if len(ranks) > 1 else frozenset()
    shared = {path: entry for path, entry in everything.items() if not is_within(path, roots)}
    states = [_tree(shared, everything, leaves, str(folder))]
    if roots:
        own = [_own(entries, everything, roots) for entries in ranks]
        sources = [f"{folder}: rank {rank}" for rank in range(len(ranks))]
        states += [_tree(found, {**ranks[rank], **found}, leaves, sources[rank]) for rank, found in enumerate(own)]
    return states


def _own_roots(ranks: Sequence[Entries]) -> frozenset[str]:
    """Paths of what is each rank's own: of leaves, or of the lists around them."""
    alike = {path for path, entry in ranks[0].items() if all(other.get(path) == entry for other in ranks)}
    return frozenset(
        _outermost_list(path, entries)
        for entries in ranks
        for path, entry in entries.items()
        if not (_is_shared(entry) or path in alike)
    )


def _outermost_list(path: str, entries: Entries) -> str:
    """The one that a leaf is in, or else the leaf."""
    above = (path[:at] for at, character in enumerate(path) if character == "/")
    return next((each for each in above if isinstance(entries.get(each), ListEntry)), path)


def _is_shared(entry: LeafEntry | ContainerEntry) -> bool:
    """Of several ranks, or without anything that could be one rank's."""
    return isinstance(entry, ContainerEntry | ShardedTensorEntry) or entry.replicated


def _own(entries: Entries, everything: Entries, roots: frozenset[str]) -> dict[str, LeafEntry | ContainerEntry]:
    """What a rank has for itself, and the containers on the way to it; what of it is shared may be in any rank's."""
    own = {path: entry for path, entry in everything.items() if root_of(path, roots) in entries and _is_part(entry)}
    own |= {path: entry for path, entry in entries.items() if path not in own and is_within(path, roots)}
    above = {path[:at] for path in own for at, character in enumerate(path) if character == "/"}
    return own | {path: entries.get(path, everything[path]) for path in above}


def _is_part(entry: LeafEntry | ContainerEntry) -> bool:
    return _is_shared(entry) and not isinstance(entry, ContainerEntry)


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
        values[path] = _container(path, containers[path], places.get(path, []), values)
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
    """A container of the values that are there. Raises FormatError for a list with a gap."""
    if isinstance(entry, ListEntry):
        if list(places) != list(range(len(places))):
            raise FormatError(f"the list {path!r} of the snapshot has items at {places} alone")
        return [values[f"{path}/{place}"] for place in places]
    held = {key: values[child] for key in entry.keys if (child := f"{path}/{escaped(key)}") in values}
    return OrderedDict(held) if isinstance(entry, OrderedDictEntry) else held
