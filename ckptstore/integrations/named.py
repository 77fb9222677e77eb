"""What an export writes: the state of a commit, or what stands at one of its names, as imports put it there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from glob import escape
from typing import Any

from ckptstore.errors import InvalidArgument, PathNotFound, nearest
from ckptstore.format.manifest import Entry
from ckptstore.operations.paths import as_globs, chosen, require_matches
from ckptstore.operations.ranks.rank_view import is_own
from ckptstore.operations.view import ManifestView
from ckptstore.progress import ProgressCallback
from ckptstore.state.paths import segment
from ckptstore.state.unflatten import narrow, unflatten
from ckptstore.store import Store


def entries_at(view: ManifestView, name: str | None, paths: str | Sequence[str] | None) -> dict[str, Entry]:
    """The leaves that `paths` select, of those at the name if one is given.

    Raises PathNotFound for a glob that selects nothing, and for a name at which nothing is, or nothing selected;
    InvalidArgument, without globs, for a name of which ranks had some each for itself.
    """
    manifest, globs = view.manifest, as_globs(paths)
    require_matches([*manifest.entries, *manifest.containers], globs, view.name)
    entries = chosen(manifest.entries, globs)
    if name is None:
        return entries
    if name not in manifest.containers[""].keys:
        raise PathNotFound(f"{view.name} has no name {name!r}; {nearest(name, manifest.containers[''].keys)}")
    found = {path: entry for path, entry in entries.items() if path.split("/", 1)[0] == segment(name)}
    own = [path for path in entries if is_own(path) and path.split("/")[1] == segment(name)]
    if globs is None and own:
        problem = f"{view.name}: ranks had {own[0]} and others each for itself, which {name!r} is without"
        raise InvalidArgument(f"{problem}: export all of it, choose with paths=, or commit with replicated=")
    if globs is not None and not found:
        raise PathNotFound(f"{view.name}: nothing at the name {name!r} is selected by {', '.join(globs)}")
    return found


def state_at(
    store: Store,
    view: ManifestView,
    name: str | None,
    paths: str | Sequence[str] | None,
    progress: ProgressCallback | None,
    *,
    allow_pickle: bool,
) -> Any:
    """That part of the state of a commit; see `entries_at`."""
    globs = _globs(view, name, paths)
    return _at(name, store.checkout(view.commit, paths=globs, allow_pickle=allow_pickle, progress=progress))


def built_at(view: ManifestView, name: str | None, paths: str | Sequence[str] | None, leaves: Mapping[str, Any]) -> Any:
    """The same, of leaves that are there already."""
    globs, containers = _globs(view, name, paths), view.manifest.containers
    return _at(name, unflatten(containers if globs is None else narrow(containers, globs), leaves))


def _globs(view: ManifestView, name: str | None, paths: str | Sequence[str] | None) -> Sequence[str] | None:
    found = entries_at(view, name, paths)
    if name is None:
        return as_globs(paths)
    return [*map(escape, [segment(name)] if paths is None else found)]


def _at(name: str | None, state: Any) -> Any:
    return state if name is None else state[name]
