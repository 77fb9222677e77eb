"""Choosing leaves of a manifest by logical path or glob."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from ckptstore.errors import InvalidArgument, PathNotFound, nearest
from ckptstore.state.paths import selector

T = TypeVar("T")


def as_globs(paths: Any, name: str = "paths") -> tuple[str, ...] | None:
    """One glob, several, or None where there is no choice; `name` is that of the argument."""
    if paths is None:
        return None
    try:
        globs = (paths,) if isinstance(paths, str) else tuple(paths)
    except TypeError:
        globs = (paths,)
    for glob in globs:
        if not isinstance(glob, str):
            raise InvalidArgument(f"{name}={paths!r}: give a glob of logical paths, or a list of them")
    return globs


def chosen(leaves: Mapping[str, T], globs: Iterable[str] | None) -> dict[str, T]:
    """The leaves that any of the globs selects, in their order; all of them for None."""
    if globs is None:
        return dict(leaves)
    selects = selector(globs)
    return {path: leaf for path, leaf in leaves.items() if selects(path)}


def require_matches(leaves: Iterable[str], globs: Collection[str] | None, commit: str) -> None:
    """Raises PathNotFound for a glob that selects nothing, and where there is none; None selects all."""
    if globs is None:
        return
    if not globs:
        raise PathNotFound(f"{commit}: the list of paths is empty; name some, or leave it out for all")
    known = dict.fromkeys(leaves)
    for glob in globs:
        if glob not in known and not any(map(selector([glob]), known)):
            raise PathNotFound(f"{commit} has no path {glob!r}; {nearest(glob, known)}")
