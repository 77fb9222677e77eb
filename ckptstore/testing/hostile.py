"""Stores as somebody makes them who means harm: altered anywhere, with checksums that fit."""

from __future__ import annotations

import struct
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
import zstandard

from ckptstore.catalog.records import ChunkLocation
from ckptstore.chunkstore import ChunkStore
from ckptstore.errors import CorruptData
from ckptstore.format import document, packs, version
from ckptstore.format.digests import checksum
from ckptstore.opening import CATALOG_FILE
from ckptstore.storage.base import RangeRead
from ckptstore.store import open_store
from ckptstore.testing.mutations import Choices, mutate_bytes, mutate_tree

STEPS = (1, 2)
_CHUNK_BYTES = 4096
_NAME = "ab" * 16
_DOCUMENT_HEAD = struct.Struct("<8sQQQ")


def state_at(step: int) -> dict[str, Any]:
    """A state with a leaf of every form, the same each time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about sparse and quantised tensors
        return _arrays() | {
            "plain": {"t": (1, 2.5), "s": {1, 2}, "none": None, 3: b"x", "big": 1 << 70, "dtype": torch.float16},
            "long": "text " * 1000,
            "step": step,
        }


def _arrays() -> dict[str, Any]:
    noise = torch.from_numpy(np.arange(3000, dtype=np.uint32) * np.uint32(2654435761)).view(torch.float32)
    sparse, tied = torch.eye(4), torch.arange(20.0)
    return {
        "model": {"noise": noise, "zeros": torch.zeros(5000, dtype=torch.int16), "bf16": noise[:40].bfloat16()},
        "turned": noise[:600].view(20, 30).t(),
        "parameter": torch.nn.Parameter(torch.ones(3)),
        "ties": [tied, tied],
        "numpy": np.arange(30, dtype=">i2").reshape(5, 6),
        "coo": sparse.to_sparse(),
        "csr": sparse.to_sparse_csr(),
        "q": torch.quantize_per_tensor(sparse, 0.1, 3, torch.quint8),
        "qc": torch.quantize_per_channel(sparse, torch.ones(4), torch.zeros(4, dtype=torch.long), 1, torch.qint8),
        "empty": torch.empty(0, 3),
    }


class Template:
    """A small store that is whole: its objects by key, and what is in them."""

    def __init__(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder, "store")
            with open_store(place, chunk_bytes=_CHUNK_BYTES) as store:
                for step in STEPS:
                    store.commit(state_at(step), step=step, metadata={"loss": 0.5})
            found = (path for path in place.rglob("*") if path.is_file() and not path.name.startswith(CATALOG_FILE))
            self.objects = {path.relative_to(place).as_posix(): path.read_bytes() for path in found}
        self.settings = msgspec.msgpack.encode(msgspec.json.decode(self.objects[version.KEY]))
        self.documents = sorted(key for key in self.objects if key.startswith("manifests/"))
        self.decoded = [zstandard.decompress(self.objects[key][_DOCUMENT_HEAD.size : -8]) for key in self.documents]
        self.pack = max((key for key in self.objects if key.endswith(".pack")), key=lambda key: len(self.objects[key]))
        self.frames, self.footer = _parts(self.objects[self.pack])

    @property
    def whole_pack(self) -> bytes:
        """The pack that nearly all chunks are in."""
        return self.objects[self.pack]

    @property
    def first_document(self) -> bytes:
        """The document of the first step."""
        return self.objects[self.documents[0]]


template = cache(Template)


def hostile_settings(choices: Choices) -> bytes:
    """Another `ckptstore.json`."""
    if choices.below(8) == 7:
        return choices.rest()
    tree = mutate_tree(template().settings, choices)
    with suppress(msgspec.ValidationError, ValueError):
        return version.encode(msgspec.convert(tree, version.StoreConfig))
    with suppress(TypeError, ValueError, RecursionError):
        return mutate_bytes(msgspec.json.encode(tree), choices)
    return b""


def hostile_pack(choices: Choices) -> bytes:
    """Another pack: mostly one whose footer lists other frames."""
    known = template()
    if choices.below(8) == 7:
        return mutate_bytes(known.whole_pack, choices)
    footer = _encoded(mutate_tree(known.footer, choices))
    footer = footer if choices.below(4) < 3 else mutate_bytes(footer, choices)
    frames = known.frames if choices.below(4) < 3 else mutate_bytes(known.frames, choices)
    return seal_pack(frames, footer)


def hostile_fields(choices: Choices, number: int = 0) -> Any:
    """A document's fields with changes, most of them in the manifest."""
    decoded = template().decoded[number]
    if choices.below(4) == 3:
        return mutate_tree(decoded, choices)
    fields = msgspec.msgpack.decode(decoded)
    return fields | {"manifest": mutate_tree(msgspec.msgpack.encode(fields["manifest"]), choices)}


def hostile_document(fields: Any, choices: Choices) -> bytes:
    """A document of these fields, with some bytes beneath them altered."""
    decoded = _encoded(fields)
    decoded = decoded if choices.below(8) < 7 else mutate_bytes(decoded, choices)
    body = zstandard.compress(decoded, 1)
    return seal_document(decoded, body if choices.below(16) < 15 else mutate_bytes(body, choices))


def key_of(fields: Any) -> str | None:
    """Where a document with these fields must lie, when that can be a place at all."""
    try:
        key = document.document_key(fields["run"], fields["step"], fields["id"])
    except (TypeError, KeyError, ValueError, AttributeError):
        return None
    return key if key.isascii() and ".." not in key and "\0" not in key and len(key) < 250 else None


def seal_pack(frames: bytes, footer: bytes) -> bytes:
    """A pack with a tail that fits."""
    where = struct.pack("<QQQ", len(frames), len(footer), checksum(footer))
    return frames + footer + where + struct.pack("<Q8s", checksum(where), b"ckptpend")


def seal_document(decoded: bytes, body: bytes | None = None) -> bytes:
    """A document whose head fits."""
    body = zstandard.compress(decoded) if body is None else body
    bare = _DOCUMENT_HEAD.pack(b"ckptmanf", len(body), len(decoded), 0)
    head = _DOCUMENT_HEAD.pack(b"ckptmanf", len(body), len(decoded), checksum(bare + body))
    return head + body + b"ckptmend"


@dataclass(frozen=True)
class _OnePack:
    """As much of a storage and a catalog as a checkout uses."""

    whole: bytes
    url: str = "memory"
    copies: int = 0

    def get_ranges(self, _: str, reads: Sequence[RangeRead]) -> None:
        for read in reads:
            part = self.whole[read.offset : read.offset + len(read.out)]
            if len(part) < len(read.out):
                raise CorruptData("the pack ends before")
            read.out[:] = part

    def locate(self, digests: Sequence[bytes]) -> dict[bytes, ChunkLocation]:
        tail = self.whole[-packs.TAIL_BYTES :]
        frames = packs.read_footer(_parts(self.whole)[1], tail, _NAME)
        return {frame.digest: _location(frame) for frame in frames if frame.digest in digests}


def memory_store(whole: bytes) -> ChunkStore:
    """The chunks of one pack, without a catalog."""
    parts: Any = _OnePack(whole)
    return ChunkStore(parts, parts, version.decode(template().objects[version.KEY], "it"))


def _location(frame: packs.Frame) -> ChunkLocation:
    return ChunkLocation(frame.digest, _NAME, frame.offset, frame.length, frame.raw_length, frame.codec, frame.base)


def _parts(whole: bytes) -> tuple[bytes, bytes]:
    """The frames and the footer of a pack."""
    offset, length = packs.footer_range(whole[-packs.TAIL_BYTES :], len(whole), _NAME)
    return whole[:offset], whole[offset : offset + length]


def _encoded(tree: Any) -> bytes:
    with suppress(TypeError, ValueError, OverflowError, RecursionError):
        return msgspec.msgpack.encode(tree)
    return b"\xc0"
