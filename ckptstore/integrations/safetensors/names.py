"""Names of tensors in files of safetensors: those of one state dict, or the logical paths of a whole state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ckptstore.errors import CkptStoreError, FormatError, StateError
from ckptstore.state.paths import parse, segment, split


def file_names(paths: Iterable[str], name: str | None) -> dict[str, str]:
    """Logical path → name in the file, of the leaves that it is to hold.

    Beneath a `name` that is the keys from there, joined by "." as modules join them, without any escapes.

    Raises StateError when two would have one name.
    """
    if name is None:
        return {path: path for path in paths}
    above = f"{segment(name)}/"
    names = {path: ".".join(map(_plain, split(path.removeprefix(above)))) for path in paths if path.startswith(above)}
    holders: dict[str, str] = {}
    for path, file_name in names.items():
        if holders.setdefault(file_name, path) != path:
            raise StateError(
                f"{holders[file_name]} and {path} would both be named {file_name!r}: choose one with paths (--paths)"
            )
    return names


def nested(tensors: Mapping[str, Any], file: str) -> dict[str, Any]:
    """Tensors by logical path as nested dicts. Raises FormatError when a tensor is beneath a tensor."""
    state: dict[str, Any] = {}
    for path, tensor in tensors.items():
        *inner, last = _keys(path)
        node = state
        for key in inner:
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                raise FormatError(f"{file}: {path!r} is beneath another tensor, so names are no paths here: {_ADVICE}")
        if last in node:
            raise FormatError(f"{file}: other tensors are beneath {path!r}, so names are no paths here: {_ADVICE}")
        node[last] = tensor
    return state


_ADVICE = "rename it, or give a name for the whole (--name)"


def _plain(part: str) -> str:
    """The key of a segment when that is a str, else the segment."""
    key = parse(part)
    return key if isinstance(key, str) else part


def _keys(path: str) -> list[Any]:
    """The keys on the way, of which the first one is a name."""
    top, *rest = split(path) or ("",)
    key = _key(top)
    return [key if isinstance(key, str) else top, *map(_key, rest)]


def _key(part: str) -> Any:
    """The key of a segment; what is the segment of no key stands for itself."""
    from ckptstore.state.values import decode

    try:
        encoded = parse(part)
        key = decode(encoded, part)
        hash(key)
    except (CkptStoreError, TypeError):
        return part
    return key if segment(encoded) == part else part
