"""Files that DCP wrote with `SerializationFormat.SAFETENSORS`: plain values, and behind them one file of safetensors
with all tensors, at whose beginning each of them is said to lie. torch has no reader that takes them.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import msgspec

from ckptstore.errors import FormatError
from ckptstore.format.grid import Index
from ckptstore.integrations.dcp_files.metadata import SavedBytes
from ckptstore.integrations.mapped import CheckpointFiles, MappedTensor, NonNegative
from ckptstore.integrations.safetensors.files import MOST_HEADER, SHARDING, torch_form

_MOST_KEPT = 64


class _Held(msgspec.Struct, frozen=True):
    dtype: str
    shape: tuple[NonNegative, ...]
    data_offsets: tuple[NonNegative, NonNegative]


class _Part(msgspec.Struct, frozen=True):
    saved_offsets: tuple[NonNegative, ...]


class PackedTensors:
    """The tensors in such files of a folder."""

    def __init__(self, files: CheckpointFiles) -> None:
        self._files = files
        self._header = lru_cache(_MOST_KEPT)(_header)

    def tensor(self, saved: SavedBytes, name: str, offsets: Index) -> MappedTensor | None:
        """A piece, None where no safetensors begin at its place. Raises FormatError for one that is not there."""
        place = self._files.place(name, saved.relative_path, saved.offset, saved.length)
        header, end = self._header(place.file, place.start)
        if header is None:
            return None
        try:
            held = msgspec.json.decode(header[name], type=_Held)
            notes = msgspec.json.decode(header["__metadata__"], type=dict[str, str])
            part = msgspec.json.decode(notes[SHARDING], type=dict[str, _Part])[name]
        except (msgspec.MsgspecError, KeyError) as error:
            raise FormatError(
                f"{place.label} are safetensors without it, or not as DCP writes them: {error}"
            ) from error
        if part.saved_offsets != offsets:
            problem = f"has the part at {list(part.saved_offsets)} and not that at {list(offsets)}"
            raise FormatError(f"{place.label} {problem}, as DCP wrote one alone: save it anew, without SAFETENSORS")
        start, stop = held.data_offsets
        dtype, shape = torch_form(name, held.dtype, held.shape, place.label)
        place = self._files.place(name, saved.relative_path, end + start, stop - start)
        return self._files.plain_tensor(place, dtype, shape)


def _header(file: Path, start: int) -> tuple[dict[str, msgspec.Raw] | None, int]:
    """What safetensors begin with, and where it ends; a file of `torch.save` has none."""
    with file.open("rb") as opened:
        opened.seek(start)
        size, begun = int.from_bytes(opened.read(8), "little"), opened.read(1)
        if begun != b"{" or not 1 <= size <= MOST_HEADER:
            return None, start
        header = begun + opened.read(size - 1)
    try:
        return msgspec.json.decode(header, type=dict[str, msgspec.Raw]), start + 8 + size
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"{file} at byte {start:,} has no whole header of safetensors: {error}") from error
