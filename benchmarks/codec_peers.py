"""The codecs that are measured, each as somebody who wants small checkpoints would use it on one thread."""

from __future__ import annotations

from abc import ABC, abstractmethod
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
import zstandard

from ckptstore.chunkstore.reliance import FEW
from ckptstore.format.codecs import ANY_GAIN, Encoded, Form, Level, codec_numbered, encode

Chunk = memoryview


class Coding(ABC):
    """Encodes floats, alone or with the chunk they were some steps before. `name` is how tables name it."""

    name: ClassVar[str]

    @abstractmethod
    def encode(self, raw: Chunk, width: int, base: Chunk | None) -> Any:
        """The encoding."""

    @abstractmethod
    def decode(self, coded: Any, size: int, width: int, base: Chunk | None) -> Any:
        """The bytes again."""

    def size(self, coded: Any) -> int:
        """Of an encoding."""
        return len(coded)


class Own(Coding):
    """ckptstore's choice at level "best"."""

    name = "ckptstore"
    level: ClassVar[Level] = "best"
    reliance: ClassVar[float] = ANY_GAIN

    def __init__(self) -> None:
        self._out = bytearray()

    def encode(self, raw: Chunk, width: int, base: Chunk | None) -> Encoded:
        return encode(raw, Form(width, floating=True), base, self.level, self.reliance)

    def decode(self, coded: Encoded, size: int, width: int, base: Chunk | None) -> Chunk:
        if len(self._out) != size:
            self._out = bytearray(size)  # a checkout decodes into memory that is there
        out = memoryview(self._out)
        bases = [base] if coded.uses_base and base is not None else []
        codec_numbered(coded.codec).decode(memoryview(coded.payload), out, bases)
        return out

    def size(self, coded: Encoded) -> int:
        return len(coded.payload)


class OwnAuto(Own):
    """ckptstore's choice at level "auto", of differences those that a store takes while few chunks rest on others."""

    name = "ckptstore, auto"
    level = "auto"
    reliance = FEW


class Peer(Coding):
    """A peer that knows no base is given the XOR with it, as its users do."""

    def encode(self, raw: Chunk, width: int, base: Chunk | None) -> Any:
        return self.pack(raw if base is None else xor(raw, base), width)

    def decode(self, coded: Any, size: int, width: int, base: Chunk | None) -> Any:
        found = self.unpack(coded, size, width)
        return found if base is None else xor(memoryview(found), base)

    @abstractmethod
    def pack(self, raw: Chunk, width: int) -> Any:
        """Encode bytes."""

    @abstractmethod
    def unpack(self, coded: Any, size: int, width: int) -> Any:
        """The bytes again."""


class Zipnn(Peer):
    """ZipNN, which picks its method by itself."""

    name = "zipnn"

    def __init__(self) -> None:
        make = import_module("zipnn").ZipNN
        kinds = {2: "bfloat16", 4: "float32"}
        self._by_width = {width: make(bytearray_dtype=kind, threads=1) for width, kind in kinds.items()}

    def pack(self, raw: Chunk, width: int) -> Any:
        return self._by_width[width].compress(bytearray(raw))  # it may change what it is given

    def unpack(self, coded: Any, size: int, width: int) -> Any:
        return self._by_width[width].decompress(bytes(coded))


class Blosc2(Peer):
    """Blosc2: its byte shuffle and zstd."""

    name = "blosc2"

    def __init__(self) -> None:
        self._library: Any = import_module("blosc2")
        self._library.set_nthreads(1)

    def pack(self, raw: Chunk, width: int) -> Any:
        library = self._library
        return library.compress2(
            raw, typesize=width, codec=library.Codec.ZSTD, clevel=5, filters=[library.Filter.SHUFFLE], nthreads=1
        )

    def unpack(self, coded: Any, size: int, width: int) -> Any:
        return self._library.decompress2(coded, nthreads=1)


class Zstd(Peer):
    """zstd at its default level, on the bytes as they lie."""

    name = "zstd"

    def pack(self, raw: Chunk, width: int) -> bytes:
        return zstandard.ZstdCompressor(level=3).compress(raw)

    def unpack(self, coded: Any, size: int, width: int) -> bytes:
        return zstandard.ZstdDecompressor().decompress(coded)


class XorPlanes(Peer):
    """What BitX does: the XOR with the base, each byte of the words apart, and zstd."""

    name = "XOR+planes"

    def pack(self, raw: Chunk, width: int) -> list[bytes]:
        planes = np.frombuffer(raw, np.uint8).reshape(-1, width).T
        return [zstandard.ZstdCompressor(level=3).compress(np.ascontiguousarray(plane).data) for plane in planes]

    def unpack(self, coded: Any, size: int, width: int) -> Any:
        planes = [np.frombuffer(zstandard.ZstdDecompressor().decompress(part), np.uint8) for part in coded]
        return np.stack(planes, axis=1).data.cast("B")

    def size(self, coded: list[bytes]) -> int:
        return sum(map(len, coded))


class OpenZl(Peer):
    """OpenZL's graph for floats: mantissas and signs as they are, exponents entropy-coded."""

    name = "OpenZL"

    def __init__(self) -> None:
        self._library: Any = import_module("openzl.ext")
        nodes = self._library.nodes
        self._by_width = {2: self._context(nodes.BFloat16Deconstruct), 4: self._context(nodes.Float32Deconstruct)}

    def _context(self, node: Any) -> tuple[Any, Any]:
        library = self._library
        compressor, context = library.Compressor(), library.CCtx()
        fraction, exponent = library.graphs.Store()(compressor), library.graphs.Entropy()(compressor)
        compressor.select_starting_graph(node()(compressor, sign_frac=fraction, exponent=exponent))
        context.set_parameter(library.CParam.FormatVersion, library.MAX_FORMAT_VERSION)
        context.set_parameter(library.CParam.StickyParameters, 1)
        context.ref_compressor(compressor)
        return context, compressor  # the first relies on the second

    def pack(self, raw: Chunk, width: int) -> Any:
        words = np.frombuffer(raw, f"<u{width}")
        return self._by_width[width][0].compress([self._library.Input(self._library.Type.Numeric, words)])

    def unpack(self, coded: Any, size: int, width: int) -> Any:
        (found,) = self._library.DCtx().decompress(coded)
        return np.asarray(found.content.as_nparray()).data.cast("B")


CODINGS: tuple[type[Coding], ...] = (Own, OwnAuto, Zipnn, Blosc2, Zstd, XorPlanes, OpenZl)


def xor(one: Chunk, other: Chunk) -> Chunk:
    """The bits in which they differ."""
    return np.bitwise_xor(np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)).data.cast("B")


def available() -> tuple[list[Coding], dict[str, str]]:
    """The codecs that can be imported here, and why others cannot."""
    found: list[Coding] = []
    missing: dict[str, str] = {}
    for make in CODINGS:
        try:
            found.append(make())
        except ImportError as error:
            missing[make.name] = str(error)
    return found, missing
