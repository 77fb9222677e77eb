"""A commit as new nested state."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance, ignore
from ckptstore.compiling import uncompiled
from ckptstore.errors import CorruptData
from ckptstore.format.manifest import Entry
from ckptstore.operations.loading.load import load_arrays, load_values
from ckptstore.operations.paths import chosen, require_matches
from ckptstore.operations.view import ManifestView
from ckptstore.state.unflatten import narrow, unflatten


@uncompiled
def checkout(
    chunks: ChunkStore,
    view: ManifestView,
    globs: Sequence[str] | None,
    *,
    skip_damaged: bool,
    allow_pickle: bool,
    budget: int | None,
    advance: Advance,
) -> Any:
    """The state, or the part of it that the globs select; see `Store.checkout`."""
    manifest, containers = view.manifest, view.manifest.containers
    require_matches([*manifest.entries, *containers], globs, view.name)
    if globs is not None:
        containers = narrow(containers, globs)
    entries = chosen(manifest.entries, globs)

    def load(entries: Mapping[str, Entry], advance: Advance) -> dict[str, object]:
        leaves = load_values(chunks, entries, allow_pickle=allow_pickle, budget=budget)
        return leaves | load_arrays(chunks, entries, {}, same=manifest.aliases, budget=budget, advance=advance)

    try:
        leaves = load(entries, advance)
    except CorruptData:
        if not skip_damaged:
            raise
        whole = _whole_entries(entries, load)
        if not whole:
            raise
        _warn(view.name, [path for path in entries if path not in whole])
        leaves = load(whole, ignore)
    return unflatten(containers, leaves, allow_pickle=allow_pickle)


def _whole_entries(
    entries: Mapping[str, Entry], load: Callable[[Mapping[str, Entry], Advance], object]
) -> dict[str, Entry]:
    """Those that can be loaded, found by loading each."""
    whole: dict[str, Entry] = {}
    for path, entry in entries.items():
        try:
            load({path: entry}, ignore)
        except CorruptData:
            continue
        whole[path] = entry
    return whole


def _warn(commit: str, lost: Sequence[str]) -> None:
    damage = f"{len(lost)} leaf is damaged" if len(lost) == 1 else f"{len(lost)} leaves are damaged"
    warnings.warn(f"{commit}: {damage} and left out: {', '.join(lost)}; run repair", stacklevel=4)
