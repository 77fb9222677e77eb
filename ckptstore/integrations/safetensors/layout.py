"""Where the tensors lie in a file of safetensors, known from their forms alone."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import msgspec

from ckptstore.errors import StateError
from ckptstore.format.manifest import TensorEntry
from ckptstore.integrations.safetensors.files import DTYPES, MOST_HEADER, PACKED

_CODES = {dtype: code for code, dtype in DTYPES.items()}
_RANKS = {dtype: rank for rank, dtype in enumerate(DTYPES.values())}
_ALIGNMENT = 8
_LENGTH_BYTES = 8


def laid_out(entries: Mapping[str, TensorEntry], metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int]]:
    """What a file begins with, and the first byte of each tensor in it, by name; as `safetensors.torch.save_file`.

    Raises StateError for more names than a file can hold.
    """
    spans: dict[str, tuple[int, int]] = {}
    end = 0
    for name in sorted(entries, key=lambda name: (_RANKS[entries[name].dtype], name)):
        entry = entries[name]
        spans[name] = end, end + prod(entry.shape) * entry.itemsize
        end = spans[name][1]
    tensors = {name: _header_entry(entries[name], span) for name, span in spans.items()}
    header = msgspec.json.encode({"__metadata__": metadata} | tensors)
    header += b" " * (-len(header) % _ALIGNMENT)
    if len(header) > MOST_HEADER:
        raise StateError(
            f"names and forms of {len(entries):,} tensors take {len(header):,} bytes in a file of safetensors, which "
            f"can hold {MOST_HEADER:,} of them: select fewer with paths (--paths), or export to torch's format"
        )
    start = _LENGTH_BYTES + len(header)
    return len(header).to_bytes(_LENGTH_BYTES, "little") + header, {name: start + at for name, (at, _) in spans.items()}


def _header_entry(entry: TensorEntry, span: tuple[int, int]) -> dict[str, object]:
    code = _CODES[entry.dtype]
    shape = (*entry.shape[:-1], *(extent * PACKED.get(code, 1) for extent in entry.shape[-1:]))
    return {"dtype": code, "shape": shape, "data_offsets": span}
