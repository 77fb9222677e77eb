"""The entries of what ranks wrote, from their reports."""

from __future__ import annotations

from math import prod

from msgspec.structs import replace

from ckptstore.errors import StateError
from ckptstore.format.grid import Grid
from ckptstore.format.manifest import INLINE_TENSOR, TensorEntry, ValueEntry
from ckptstore.operations.ranks.reports import Report


def tensor_entry(path: str, form: TensorEntry, written: Report) -> TensorEntry:
    """A tensor's entry; `form` is the same without content. Raises StateError when nobody wrote some of it."""
    nbytes = prod(form.shape) * form.itemsize
    small = nbytes <= INLINE_TENSOR
    inline = written.inline.get(path, b"")
    held = {} if small else written.chunks.get(path, {})
    count = 0 if small else len(Grid(form.shape, form.chunk_shape))
    if len(held) != count or len(inline) != nbytes * small:
        raise StateError(f"{path!r}: it was planned, but no rank wrote all of it: let all ranks that have it commit")
    return replace(form, chunks=b"".join(held[number] for number in range(count)), inline=inline)


def value_entry(path: str, written: Report, chunk_bytes: int) -> ValueEntry:
    """A plain value's entry. Raises StateError when nobody wrote it."""
    if path not in written.values:
        raise StateError(f"{path!r}: it was planned, but no rank wrote it: let all ranks that have it commit")
    value, size = written.values[path]
    if not size:
        return ValueEntry(value)
    held = written.chunks[path]
    return ValueEntry(None, size, chunk_bytes, b"".join(held[number] for number in range(len(held))))
