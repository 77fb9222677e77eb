"""A commit as new nested state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance
from ckptstore.operations.load import load_arrays, load_values
from ckptstore.operations.paths import chosen, require_matches
from ckptstore.operations.view import ManifestView
from ckptstore.state.tree import narrow, unflatten


def checkout(
    chunks: ChunkStore,
    view: ManifestView,
    globs: Sequence[str] | None,
    *,
    allow_pickle: bool,
    budget: int,
    advance: Advance,
) -> Any:
    """The state, or the part of it that the globs select; see `Store.checkout`."""
    manifest, containers = view.manifest, view.manifest.containers
    if globs is not None:
        require_matches([*manifest.entries, *containers], globs, view.name)
        containers = narrow(containers, globs)
    entries = chosen(manifest.entries, globs)
    leaves = load_values(chunks, entries, allow_pickle=allow_pickle, budget=budget)
    leaves |= load_arrays(chunks, entries, {}, same=manifest.aliases, budget=budget, advance=advance)
    return unflatten(containers, leaves, allow_pickle=allow_pickle)
