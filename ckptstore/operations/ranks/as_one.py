"""The states of several ranks where one process knows all of them: as those would commit them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from ckptstore.format.manifest import MAPPINGS, Container
from ckptstore.operations.ranks.uniting import joined
from ckptstore.state.paths import join
from ckptstore.state.tree import Flat


def as_one(common: Flat, own: Sequence[Flat]) -> Flat:
    """What all ranks have, and what each has for itself; in containers on the way to that, and nowhere else, both are.

    These are mappings, see `merging`.
    """
    leaves, containers, aliases = dict(common.leaves), dict(common.containers), list(common.aliases)
    for rank, flat in enumerate(own):
        prefix = str(rank)
        leaves |= {join(prefix, path): leaf for path, leaf in flat.leaves.items()}
        aliases += [tuple(join(prefix, path) for path in group) for group in flat.aliases]
        for path, container in flat.containers.items():
            containers[join(prefix, path)] = container
            if _is_on_the_way(path, flat.containers):
                containers[path] = joined(containers.get(path, container), container)
    root = containers[""]
    containers[""] = msgspec.structs.replace(root, keys=(*root.keys, *range(len(own))))
    return replace(common, leaves=leaves, containers=containers, aliases=tuple(aliases))


def _is_on_the_way(path: str, containers: Mapping[str, Container]) -> bool:
    """Whether it is a mapping in nothing but mappings."""
    while containers[path].kind in MAPPINGS:
        if not path:
            return True
        path = path.rpartition("/")[0]
    return False
