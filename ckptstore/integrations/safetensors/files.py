"""The tensors of safetensors files, alone or in a folder with Hugging Face's index. They are mapped, not loaded."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from ckptstore.errors import FormatError
from ckptstore.format.grid import Index
from ckptstore.integrations.mapped import CheckpointFiles, gathered
from ckptstore.state.dtypes import torch_dtype
from ckptstore.state.pieces import PiecedTensor

FORMAT = "format"
"""What of a file's metadata names no tied tensor."""

SHARDING = "DCP_SHARDING_INFO"
"""What of it states which parts of tensors torch.distributed.checkpoint wrote."""

DTYPES = {
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
    "F32": "float32",
    "U32": "uint32",
    "I32": "int32",
    "BF16": "bfloat16",
    "F16": "float16",
    "U16": "uint16",
    "I16": "int16",
    "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "F8_E4M3FNUZ": "float8_e4m3fnuz",
    "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I8": "int8",
    "U8": "uint8",
    "F4": "float4_e2m1fn_x2",
    "BOOL": "bool",
}
"""Their dtype → torch's, in the order in which tensors lie in a file, so that all are aligned."""

PACKED = {"F4": 2}
"""Elements in one of torch's, where that has several."""

MOST_HEADER = 100_000_000
"""Bytes of a header, beyond which readers refuse a file."""

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_NUMBERED = re.compile(r"-0*(\d+)-of-0*(\d+)\.\w+$")
_CONSOLIDATE = "bring the files together with torch's consolidate_safetensors_files_on_every_rank, and import that"
_MOST_LISTED = 9


class _Index(msgspec.Struct, frozen=True):
    weight_map: Annotated[dict[str, str], msgspec.Meta(min_length=1)]


def read_tensors(path: Path) -> dict[str, PiecedTensor]:
    """Name → tensor, of a file or of a folder as Hugging Face's libraries write it. What is tied is one tensor.

    Raises FormatError, naming the file, for what is no such file or folder.
    """
    if not path.is_dir():
        return _read_file(path)
    single, index = path / SINGLE, path / INDEX
    if single.exists() and index.exists():
        raise FormatError(f"{path} holds both {SINGLE} and {INDEX}: name the file, or move one of them away")
    if index.exists():
        return _read_shards(index)
    if not single.exists():
        raise FormatError(f"{path} has neither {SINGLE} nor {INDEX}: {_what_to_give(sorted(os.listdir(path)))}")
    return _read_file(single)


def _read_file(file: Path) -> dict[str, PiecedTensor]:
    tensors, notes = _opened(CheckpointFiles(file.parent, allow_pickle=False), file, file.name)
    _check_whole(file, notes)
    return _with_ties(tensors, notes)


def _check_whole(file: Path, notes: Mapping[str, str]) -> None:
    """Raises FormatError for what one of several ranks had, and for one of several files."""
    index = file.parent / INDEX
    if SHARDING in notes and not (index.exists() and file.name in _weight_map(index).values()):
        raise FormatError(f"{file} may hold parts of tensors, those of one rank, by its {SHARDING}: {_CONSOLIDATE}")
    number, count = _place_of(file.name)
    if count > 1:
        advice = f"give the folder {file.parent}, or rename the file if you want no more than this"
        raise FormatError(f"{file} is file {number} of {count}: {advice}")


def _place_of(name: str) -> tuple[int, int]:
    """Which of how many files this is, as its name says."""
    found = _NUMBERED.search(name)
    return (int(found[1]), int(found[2])) if found else (1, 1)


def _what_to_give(names: Sequence[str]) -> str:
    """What helps where a folder lacks what makes it one of Hugging Face; `names` are those of its files."""
    held = [name for name in names if name.endswith(".safetensors")]
    held = held or [name for name in names if name.endswith((".bin", ".pt", ".pth"))]
    if not held:
        return "give a folder that has one of them, or a file"
    if held[0].startswith("shard-"):
        return _CONSOLIDATE
    if _place_of(held[0])[1] == 1:
        return (
            f"give its file {held[0]}" if len(held) == 1 else f"give one of its files, {', '.join(held[:_MOST_LISTED])}"
        )
    if held[0].endswith(".safetensors"):
        return f"bring {INDEX} from where {held[0]} came from"
    return f"{held[0]} is a part of a state: load it with the library that wrote it, and save it as safetensors"


def _read_shards(index: Path) -> dict[str, PiecedTensor]:
    wanted = _weight_map(index)
    files = CheckpointFiles(index.parent, allow_pickle=False)
    found: dict[str, PiecedTensor] = {}
    ties: dict[str, str] = {}
    for shard in dict.fromkeys(wanted.values()):
        file = files.place(INDEX, shard).file
        tensors, notes = _opened(files, file, shard)
        named = {name for name, there in wanted.items() if there == shard}
        for name in sorted(named.symmetric_difference(tensors)):
            which = "is to hold" if name in named else "holds, and should not,"
            raise FormatError(f"{file} {which} {name!r} by {index.name}: they are not of one checkpoint, bring it anew")
        found |= tensors
        ties |= notes
    return _with_ties(found, ties)


def _weight_map(index: Path) -> Mapping[str, str]:
    try:
        return msgspec.json.decode(index.read_bytes(), type=_Index).weight_map
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FormatError(f"{index} is no index of safetensors files: {error}") from error


def _opened(files: CheckpointFiles, file: Path, there: str) -> tuple[dict[str, PiecedTensor], dict[str, str]]:
    """The tensors of a file in the order of their names, and its metadata; `there` is its name among `files`."""
    try:
        with safe_open(file, framework="np") as opened:  # which maps nothing writable, as "pt" would
            return dict(sorted(_tensors(files, file, there, opened))), opened.metadata() or {}
    except SafetensorError as error:
        raise FormatError(f"{file} is no whole safetensors file: {error}") from error


def _with_ties(tensors: dict[str, PiecedTensor], notes: Mapping[str, str]) -> dict[str, PiecedTensor]:
    tied = {name: tensors[kept] for name, kept in notes.items() if kept in tensors and name != FORMAT}
    return tied | tensors


def _tensors(files: CheckpointFiles, file: Path, there: str, opened: Any) -> Iterator[tuple[str, PiecedTensor]]:
    """Opening has checked that they lie one behind another, and fill the file."""
    at = _header_bytes(file)
    for name in opened.offset_keys():
        part = opened.get_slice(name)
        dtype, shape = torch_form(name, part.get_dtype(), tuple(part.get_shape()), str(file))
        place = files.place(name, there, at, prod(shape) * dtype.itemsize)
        mapped = files.plain_tensor(place, dtype, shape)
        yield name, gathered(f"{file}: {name!r}", dtype, shape, [((0,) * len(shape), shape, mapped)])
        at += place.size


def torch_form(name: str, code: str, shape: Index, source: str) -> tuple[torch.dtype, Index]:
    """A tensor's dtype and shape for torch; `source` names where it is. Raises FormatError for what torch has not."""
    if code not in DTYPES:
        raise FormatError(f"{source}: {name!r} has the dtype {code}, which torch has not")
    packed = PACKED.get(code, 1)
    if any(extent % packed for extent in shape[-1:]):
        raise FormatError(f"{source}: {name!r} ends within a byte: {code} of shape {list(shape)}")
    return torch_dtype(name, DTYPES[code]), shape[:-1] + tuple(extent // packed for extent in shape[-1:])


def _header_bytes(file: Path) -> int:
    with file.open("rb") as opened:
        return 8 + int.from_bytes(opened.read(8), "little")
