"""What `docs/format.md` says is enough to read a store: here is a reader that was written from that page alone."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import shutil
import struct
from functools import partial
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
import xxhash
import zstandard
from blake3 import blake3
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

import ckptstore
from ckptstore.format.manifest import TensorEntry
from ckptstore.state.tensors import TensorLeaf

GOLDEN = Path(__file__).parents[1] / "golden" / "format1"
PASSPHRASE = b"correct horse"
BLOCK = 1 << 17

xxh3 = xxhash.xxh3_64_intdigest


class Reader:
    """A store. Everything is compared with its checksums and digests."""

    def __init__(self, place, passphrase=b""):
        self.place, self.key = place, b""
        settings = json.loads((place / "ckptstore.json").read_text())
        bare = json.dumps(settings | {"checksum": ""}, separators=(",", ":"))
        assert settings["checksum"] == f"{xxh3(bare.encode()):016x}"
        self.id, self.function = settings["id"], settings["digest"]
        if "encryption" in settings["requires_read"]:
            (wrapped,) = (json.loads(path.read_text()) for path in place.glob("keys/*.key"))
            salt, key = (base64.b64decode(wrapped[name]) for name in ("salt", "key"))
            self.key = hashlib.scrypt(passphrase, salt=salt, n=wrapped["cost"], r=8, p=1, dklen=32, maxmem=1 << 28)
            self.key = self.opened("data key", 0, key)
        self.frames = {frame[0]: frame for path in place.glob("packs/*/*.pack") for frame in self.pack(path)}
        documents = [self.document(path) for path in place.glob("manifests/*/*.manifest")]
        self.commits = {f"{one['run']}@{one['step']}": one for one in documents}

    def derived(self, info):
        return HKDF(SHA256(), 32, salt=self.id.encode(), info=info.encode()).derive(self.key)

    def opened(self, name, position, data, bound=b""):
        associated = f"{self.id} {name} {position} ".encode() + bound
        return AESGCM(self.derived(f"object {name}")).decrypt(position.to_bytes(12, "big"), data, associated)

    def digest(self, data):
        key = self.key and self.derived("digests")
        if self.function == "sha256":
            return hmac.digest(key, data, "sha256") if key else hashlib.sha256(data).digest()
        if self.function == "blake3":
            return (blake3(data, key=key) if key else blake3(data)).digest()
        bare = xxhash.xxh3_128_digest(data)
        return Cipher(algorithms.AES256(key), modes.ECB()).encryptor().update(bare) if key else bare

    def pack(self, path):
        data = path.read_bytes()
        offset, length, checksum, own, magic = struct.unpack("<4Q8s", data[-40:])
        assert (magic, own) == (b"ckptpend", xxh3(data[-40:-16]))
        assert (offset + length, checksum) == (len(data) - 40, xxh3(data[offset:-40]))
        assert data[:64] == b"ckptpack".ljust(64, b"\0")
        end = 64
        for digest, codec, start, size, raw_length, sealed, base in msgspec.msgpack.decode(data[offset:-40]):
            header = struct.pack("<4sBBBx3Q", b"CKFR", codec, len(digest), len(base), raw_length, size, sealed)
            header += digest + base
            header += struct.pack("<Q", xxh3(header))
            header += bytes(-len(header) % 64)
            before, payload = data[end:start].removesuffix(header), data[start : start + size]
            assert len(before) == start - end - len(header) < 512
            assert not any(before)
            assert xxh3(payload) == sealed
            end = start + size + -(start + size) % 64
            yield digest, codec, path.stem, start, payload, raw_length, base
        assert end == offset

    def document(self, path):
        data = path.read_bytes()
        if self.key:
            assert (data[:8], data[-8:]) == (b"ckptseal", b"ckptmend")
            data = self.opened(path.relative_to(self.place).as_posix(), 0, data[8:-8])
        magic, length, size, checksum = struct.unpack("<8s3Q", data[:32])
        body = data[32:-8]
        assert (magic, length, data[-8:]) == (b"ckptmanf", len(body), b"ckptmend")
        assert checksum == xxh3(data[:24] + bytes(8) + body)
        decoded = zstandard.decompress(body)
        assert len(decoded) == size
        found = msgspec.msgpack.decode(decoded)
        assert found["content"] == self.digest(msgspec.msgpack.encode(found["manifest"]))
        return found

    def split(self, digests):
        size = len(self.digest(b""))
        return [digests[at : at + size] for at in range(0, len(digests), size)]

    def chunk(self, digest):
        _, codec, pack, offset, payload, size, base = self.frames[digest]
        if self.key:
            payload = self.opened(pack, offset, payload, bytes([codec]) + digest)
        raw = DECODERS[codec](payload, size, [self.chunk(one) for one in self.split(base)])
        assert (len(raw), self.digest(raw)) == (size, digest)
        return raw

    def leaf(self, entry):
        """The bytes of a tensor, or what a value is encoded to."""
        if entry[0] == "value":
            _, value, _, _, digests = entry
            return msgspec.msgpack.decode(b"".join(map(self.chunk, self.split(digests)))) if digests else value
        return b"".join(map(self.chunk, self.split(entry[6]))) if entry[6] else entry[7]


def zstd(frame, size, _=()):
    return zstandard.ZstdDecompressor().decompress(frame, max_output_size=size)


def planes(payload, size, bases=(), onto=lambda width, bases: 0):
    width, split, center, flags = payload[:4]
    kept, signed = flags & 1, flags & 2
    sizes = [1] * (width // 2) + [width // 2] if kept else [1] * width
    count, at = size // width, 4 + 2 * len(sizes)
    ways = list(zip(payload[4:at:2], payload[5:at:2], sizes, strict=True))
    blocks = [min(BLOCK, count - start) for start in range(0, count, BLOCK)]
    number = len(blocks) * sum(1 if bits == 8 else 3 for bits, *_ in ways)
    lengths = struct.unpack_from(f"<{number}I", payload, at)
    ends = np.cumsum([at + 4 * number, *lengths]).tolist()
    parts = (payload[start:end] for start, end in pairwise(ends))
    whole = partial(join, width=width, split=split, center=center, kept=kept, signed=signed)
    joined = [whole([plane(parts, block, *way) for way in ways]) for block in blocks]
    words = np.concatenate([np.empty(0, f"<u{width}"), *joined]) + onto(width, bases)
    tail = payload[ends[-1] :]
    assert len(tail) == size % width
    return words.astype(f"<u{width}").tobytes() + tail


def plane(parts, count, bits, offset, size):
    if bits == 8:
        return part(next(parts), count * size)
    symbols = -(-count * bits // 8)
    common, gaps = part(next(parts), symbols), next(parts)
    places = part(gaps[4:], int.from_bytes(gaps[:4], "little")) if gaps else np.empty(0, np.uint8)
    others, place = part(next(parts), len(places)), 0
    byte = np.arange(count)
    found = common[byte % symbols] >> (byte // symbols * bits).astype(np.uint8) & (1 << bits) - 1 if bits else 0 * byte
    found = (found.astype(int) + offset).astype(np.uint8)
    for gap, other in zip(places.tolist(), others, strict=True):
        place += gap if gap < 240 else 240 << gap - 240
        found[place] = other
    return found


def part(stored, size):
    if len(stored) == size:
        return np.frombuffer(stored, np.uint8)
    return np.frombuffer(stored * size if len(stored) == 1 else zstd(stored, size), np.uint8)


def join(cut, width, split, center, *, kept, signed):
    if split < 8:
        field, rest = (each.astype(int) for each in cut[:2])
        first = (rest >> split << split + 8 | field << split | rest & (1 << split) - 1) + 128 * center & 0xFFFF
        cut = [(first >> 8).astype(np.uint8), (first & 0xFF).astype(np.uint8), *cut[2:]]
    if width == 1:
        return cut[0]
    half, bits = width // 2, 4 * width
    whole = partial(join, width=half, split=8, center=0, kept=0, signed=signed)
    high, low = whole(cut[:half]), cut[half].view(f"<u{half}") if kept else whole(cut[half:])
    high, low = high.astype(f"<u{width}"), low.astype(f"<u{width}")
    return (high - (low >> bits - 1 if signed else 0) << bits) + low


def base_words(width, bases):
    (base,) = bases
    return np.frombuffer(base, f"<u{width}", len(base) // width)


def adam(payload, size, bases):
    kind, number, rounding = payload[:3]
    factors = struct.unpack_from("<2d" if kind else "<4d", payload, 8)
    single, least = np.float32, 2.0**-100 if kind else 2.0**-50
    words = [np.frombuffer(base, "<u2" if number else "<u4", size // (2 if number else 4)) for base in bases]
    old, first, second = ((word.astype("<u4") << (16 if number else 0)).view(single) for word in words)
    each = nearest if number and not rounding else lambda values: values
    with np.errstate(all="ignore"):
        if kind:
            b, c = factors
            g = (second - first) / single(1 - b) + first
            found = each(old * single(c)) + (single(1 - c) * g) * g
        else:
            k, s, r, e = map(single, factors)
            second = np.where(second < 2.0**-100, np.where(np.isinf(second), single("nan"), single(0)), second)
            found = each(old * k) + (s * first) / each(each(each(np.sqrt(second)) / r) + e)
        found = nearest(found) if number else found
        sure = np.abs(found) >= least
    made = np.where(sure, found.view("<u4") >> (16 if number else 0), words[0]).astype(words[0].dtype)
    return planes(payload[8 + 8 * len(factors) :], size, onto=lambda *_: made)


def nearest(values):
    bits = values.view("<u4")
    return (bits + (0x7FFF + (bits >> 16 & 1)).astype("<u4") & np.uint32(0xFFFF0000)).view(np.float32)


DECODERS = [lambda payload, *_: payload, zstd, planes, partial(planes, onto=base_words), adam]


def assert_read_alike(reader, store):
    """Returns the codecs that there were."""
    for address, commit in reader.commits.items():
        entries = commit["manifest"][0]
        for path, entry in store.manifest(address).items():
            found = reader.leaf(entries[path])
            if isinstance(entry, TensorEntry):
                assert found == TensorLeaf(store.read(address, path)).row_major(), f"{address} {path}"
            elif isinstance(found, str):
                assert found == store.read(address, path)
    return {codec for _, codec, *_ in reader.frames.values()}


@pytest.mark.parametrize(("name", "codecs"), [("xxh3_128", 2), ("sha256", 2), ("blake3", 2), ("deltas", 4)])
def test_golden_stores(name, codecs, tmp_path):
    place = shutil.copytree(GOLDEN / name, tmp_path / name, ignore=shutil.ignore_patterns("catalog.sqlite"))
    with ckptstore.open(place, read_only=True) as store:
        assert assert_read_alike(Reader(place), store) == set(range(codecs))


@pytest.mark.parametrize(
    ("digest", "dtype", "encrypt"),
    [
        ("xxh3_128", torch.float32, False),
        ("xxh3_128", torch.bfloat16, True),
        ("sha256", torch.bfloat16, True),
        ("blake3", torch.float32, True),
    ],
)
def test_trained_stores(tmp_path, digest, dtype, encrypt):
    key = tmp_path / "passphrase"
    key.write_bytes(PASSPHRASE + b"\n")
    sealing = {"encrypt": True, "key_file": key} if encrypt else {}
    model = torch.nn.Linear(300, 200).to(dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    settings = {"digest": digest, "chunk_bytes": 1 << 16, "compression": "best"}
    with ckptstore.open(tmp_path / "store", **settings, **sealing) as store:
        for step in range(4):
            for parameter in model.parameters():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
            large = torch.arange(2 << 17) + step
            store.commit({"model": model, "optim": optimizer, "counts": large, "text": "text " * 1000}, step=step)
        codecs = assert_read_alike(Reader(tmp_path / "store", PASSPHRASE), store)
    assert codecs >= {1, 2, 3, 4}
