"""Checkout into live state: everything is checked first, then tensors are filled in place and objects get their state.

Plain state, modules and `StateDict` must have the commit's paths exactly. Other stateful objects (optimizers,
schedulers, loaders) may hold more or less than the commit, as a fresh optimizer does: they get its state whole.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

from ckptstore.chunkstore import ChunkStore
from ckptstore.chunkstore.grouping import Advance
from ckptstore.compiling import uncompiled
from ckptstore.errors import InvalidArgument
from ckptstore.operations.loading.fitting import Fitting
from ckptstore.operations.loading.handover import Handover
from ckptstore.operations.loading.load import load_arrays, load_values
from ckptstore.operations.loading.optimizer_states import parameter_names
from ckptstore.operations.loading.ownership import Ownership, loaded_whole
from ckptstore.operations.loading.shared_memory import put
from ckptstore.operations.paths import chosen, require_matches
from ckptstore.operations.ranks.groups import Seat
from ckptstore.operations.ranks.rank_view import all_paths, own_paths, seen_from
from ckptstore.operations.view import ManifestView
from ckptstore.state.arrays import Array
from ckptstore.state.containers import require_classes
from ckptstore.state.paths import segment
from ckptstore.state.shards import part_of, regions_of
from ckptstore.state.tree import flatten_target


@uncompiled
def restore(
    chunks: ChunkStore,
    view: ManifestView,
    into: Mapping[str, Any],
    globs: Sequence[str] | None,
    *,
    seat: Seat,
    strict: bool,
    allow_cast: bool,
    allow_pickle: bool,
    budget: int | None,
    advance: Advance,
) -> None:
    """Load the commit's leaves under the names of `into`; see `Store.checkout`."""
    if not isinstance(into, MutableMapping):
        raise InvalidArgument(
            f'the app state to fill is a {type(into).__name__}: give a dict of names, as {{"model": model}}'
        )
    flat = flatten_target(into)
    for error in chosen(flat.unfit, globs).values():
        raise error
    seen = seen_from(view.manifest, seat, set(map(segment, into)), globs, loaded_whole(flat), strict=strict)
    owned = Ownership(seen, flat, globs, strict=strict, apart=own_paths(view.manifest, seat))
    fitting, manifest = Fitting(owned, strict=strict, allow_cast=allow_cast), owned.manifest
    elsewhere = () if strict else all_paths(view.manifest)  # of which this rank may have nothing
    require_matches([*manifest.entries, *manifest.containers, *elsewhere], globs, view.name)
    for path, container in manifest.containers.items():
        if owned.whole(path):
            require_classes(container, path, allow_pickle=allow_pickle)
    needed = owned.wanted | parameter_names(owned)
    values = load_values(chunks, needed, allow_pickle=allow_pickle, budget=budget)
    held = _held(chunks, owned, fitting, budget, advance)
    fitting.check(values, held)
    loaded = {path: value for path, value in values.items() if path in owned.wanted}
    loaded |= _fill(chunks, owned, fitting, held, budget, advance)
    Handover(owned, fitting, loaded, allow_pickle).hand_over(into)


def _held(
    chunks: ChunkStore, owned: Ownership, fitting: Fitting, budget: int | None, advance: Advance
) -> dict[str, Any]:
    """What the commit has for arrays that overlap in the target: only these bytes tell whether it can take them."""
    paths = {path for pair in fitting.overlapping for path in pair} - fitting.sharded.keys()
    entries = {path: entry for path, entry in owned.wanted.items() if path in paths}
    return load_arrays(chunks, entries, {}, same=(), budget=budget, advance=advance)


def _fill(
    chunks: ChunkStore,
    owned: Ownership,
    fitting: Fitting,
    held: Mapping[str, Array],
    budget: int | None,
    advance: Advance,
) -> dict[str, object]:
    """Every wanted array, loaded; what is one memory in the target is filled once, and not by several threads."""
    repeated = {path: group[0] for group in fitting.ties() for path in group[1:]}
    entries = {path: entry for path, entry in owned.wanted.items() if path not in repeated and path not in held}
    regions = {path: regions_of(tensor, path) for path, tensor in fitting.sharded.items()}
    targets = fitting.targets | fitting.made | {path: part_of(tensor) for path, tensor in fitting.sharded.items()}
    arrays = load_arrays(
        chunks, entries, targets, same=owned.manifest.aliases, regions=regions, budget=budget, advance=advance
    )
    for path, array in held.items():
        put(fitting.targets[path], array)
    arrays |= {path: fitting.targets[path] for path in held}
    return arrays | {path: arrays[first] for path, first in repeated.items()} | fitting.sharded
