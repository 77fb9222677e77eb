"""States of optimizers as these know them, where numbers of parameters became text, as all keys do in DCP."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ckptstore.format.manifest import Container, Manifest
from ckptstore.state.paths import join, parse, segment, split


def renumbered(manifest: Manifest, optimizers: Sequence[str]) -> Manifest:
    """The manifest with numbers for the keys of the optimizers' states at these paths, where all keys read like some.

    `Optimizer.load_state_dict` takes state under other keys without a word, and for nobody.
    """
    states = [state for root in optimizers if _is_text(manifest, state := join(root, "state"))]
    if not states:
        return manifest

    def now(path: str) -> str:
        state = next((state for state in states if path.startswith(f"{state}/")), None)
        if state is None:
            return path
        key, *rest = split(path.removeprefix(f"{state}/"))
        return join(state, segment(int(parse(key))), *rest)

    containers = {now(path): container for path, container in manifest.containers.items()}
    for state in states:
        keys = tuple(map(int, containers[state].keys))
        containers[state] = replace(containers[state], keys=keys)
    entries = {now(path): entry for path, entry in manifest.entries.items()}
    return Manifest(entries, containers, tuple(tuple(map(now, group)) for group in manifest.aliases))


def _is_text(manifest: Manifest, state: str) -> bool:
    keys = manifest.containers.get(state, Container("dict")).keys
    return bool(keys) and all(isinstance(key, str) and key.isdecimal() and str(int(key)) == key for key in keys)
