"""What a commit lacks and a target knows by a tie: hubs store a weight that is tied once, under one of its names."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from ckptstore.format.manifest import Manifest
from ckptstore.state.paths import root_of, segment
from ckptstore.state.stateful import is_exact
from ckptstore.state.tree import Flat

_DICTS = frozenset({"dict", "OrderedDict"})


def with_known_ties(manifest: Manifest, flat: Flat) -> Manifest:
    """The manifest with an entry for each leaf that it lacks in a dict, and that the target ties to one that it has."""
    known = dict(_known(manifest, flat))
    if not known:
        return manifest
    containers = dict(manifest.containers)
    for path in known:
        above, _, name = path.rpartition("/")
        key = next(key for key in flat.containers[above].keys if segment(key) == name)
        containers[above] = replace(containers[above], keys=(*containers[above].keys, key))
    entries = {path: manifest.entries[first] for path, first in known.items()}
    return Manifest(manifest.entries | entries, containers, manifest.aliases)


def _known(manifest: Manifest, flat: Flat) -> Iterator[tuple[str, str]]:
    """Path of such a leaf → path of the commit's.

    Names of the app state are the caller's own, and must be there. Who gets the commit's state whole gets that alone.
    """
    for group in flat.aliases:
        there = [path for path in group if path in manifest.entries]
        for path in group if there else ():
            above = path.rpartition("/")[0]
            both = [side.containers[above].kind for side in (manifest, flat) if above in side.containers]
            owner = flat.owners.get(root_of(path, flat.owners))
            lacking = path not in manifest.entries and (owner is None or is_exact(owner))
            if lacking and above and len(both) > 1 and _DICTS.issuperset(both):
                yield path, there[0]
