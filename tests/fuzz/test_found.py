"""What fuzzing and reading found once, each as the smallest input. Checksums fit in all of them."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

import ckptstore
from ckptstore.chunkstore import DEFAULT_BUDGET, ChunkStore
from ckptstore.errors import CkptStoreError, CorruptData, NotAStore
from ckptstore.format import document, packs, version
from ckptstore.format.codecs import RAW, ZSTD
from ckptstore.format.digests import digest_named
from ckptstore.format.manifest import Container, Entry, Manifest, TensorEntry, ValueEntry, check_consistent
from ckptstore.operations.loading.load import load_arrays, load_values
from ckptstore.operations.problem import Problem
from ckptstore.state.new_arrays import allocate
from ckptstore.state.unflatten import unflatten
from ckptstore.state.values import decode
from ckptstore.testing.hostile import memory_store, seal_document, seal_pack
from ckptstore.testing.memory import peak_of

DIGEST = b"d" * 16
_XXH3 = digest_named("xxh3_128")


def tensor(**changes: Any) -> TensorEntry:
    """Two floats, inline."""
    fields: dict[str, Any] = {"library": "torch", "dtype": "float32", "itemsize": 4, "shape": (2,), "chunk_shape": (2,)}
    return TensorEntry(**({**fields, "inline": bytes(8)} | changes))


def chunked(**changes: Any) -> TensorEntry:
    return tensor(**({"inline": b"", "shape": (64,), "chunk_shape": (64,), "chunks": DIGEST} | changes))


# ckptstore.json


@pytest.mark.parametrize("change", [{"chunk_bytes": 0}, {"chunk_bytes": 1 << 62}, {"format": 0}, {"format": -1}])
def test_settings_that_no_store_has(change):
    fields = {"format": 1, "id": "i" * 32, "digest": "xxh3_128", "chunk_bytes": 4096, "created": 1.0}
    with pytest.raises(NotAStore, match=r"/place/ckptstore\.json has settings"):
        version.decode(version.encode(version.StoreConfig(**(fields | change))), "/place")


@pytest.mark.parametrize("dtype", [">S2", "=f4", "float32", "2i4"])
def test_a_dtype_by_another_name_than_writers_give_it(dtype):
    entry = tensor(library="numpy", dtype=dtype, itemsize=np.dtype(dtype).base.itemsize)
    with pytest.raises(CkptStoreError, match=re.escape(dtype)):
        allocate("a", entry)


# packs


def pack_of(*frames: packs.Frame) -> bytes:
    """A pack of 1000 zeros whose footer lists these frames."""
    return seal_pack(bytes(1000), msgspec.msgpack.encode(frames))


def frames_of(whole: bytes) -> list[packs.Frame]:
    tail = whole[-packs.TAIL_BYTES :]
    offset, length = packs.footer_range(tail, len(whole), "it")
    return packs.read_footer(whole[offset : offset + length], tail, "it")


@pytest.mark.parametrize(
    ("offset", "length", "raw_length"),
    [
        (64, 10, 1 << 40),
        (64, 937, 937),
        (1 << 63, 1, 1),
        (64, 1 << 62, 1),
        (64, 0, 1),
        (64, 900, 1 << 31),
        (64, 900, 300 << 20),
    ],
)
def test_frames_that_cannot_be(offset, length, raw_length):
    with pytest.raises(CorruptData, match=f"frame at {offset} that cannot be"):
        frames_of(pack_of(packs.Frame(DIGEST, ZSTD.number, offset, length, raw_length, 0)))


def test_the_densest_payload_can_be():
    zeros = bytes(4 << 20)
    payload = ZSTD.encode(memoryview(zeros))
    frame = packs.Frame(DIGEST, ZSTD.number, 64, len(payload), len(zeros), 0)
    assert frames_of(pack_of(frame)) == [frame]


# manifests


@pytest.mark.parametrize(
    "entry",
    [
        tensor(itemsize=-4, shape=(0,), inline=b""),
        tensor(shape=(0, 1 << 62), chunk_shape=(1, 1), inline=b""),
        tensor(shape=(1,) * 65, chunk_shape=(1,) * 65, inline=bytes(4)),
        tensor(shape=((1 << 63) - 1,) * 60 + (0,), chunk_shape=(1,) * 61, inline=b""),
        chunked(inline=bytes(256)),
        chunked(itemsize=0),
        chunked(shape=(1 << 62,), chunk_shape=(1 << 62,)),
        chunked(shape=(4, 4), chunk_shape=(4, 1), chunks=DIGEST * 4),
        ValueEntry(7, size=10, chunk_size=10, chunks=DIGEST),
        ValueEntry(None, size=1 << 63, chunk_size=1 << 63, chunks=DIGEST),
        ValueEntry(None, size=10),
        ValueEntry(None, size=-1),
    ],
)
def test_entries_that_contradict_themselves(entry):
    with pytest.raises(CorruptData, match="the entry of 'a' contradicts itself"):
        check_consistent(Manifest({"a": entry}, {}), 16, "it")


@pytest.mark.parametrize(
    "ties",
    [
        (("a", "c"),),  # another tensor
        (("a", "none"),),
        (("a", "value"), ("value", "value")),
        (("a", "b"), ("b", "a")),
        (("a", "a"),),
    ],
)
def test_ties_that_contradict_themselves(ties):
    entries: dict[str, Entry] = {"a": tensor(), "b": tensor(), "c": tensor(inline=b"other 8 "), "value": ValueEntry(1)}
    check_consistent(Manifest(entries, {}, (("a", "b"),)), 16, "it")
    with pytest.raises(CorruptData, match="it"):
        check_consistent(Manifest(entries, {}, ties), 16, "it")


@pytest.mark.parametrize("path", ["", "a"])
def test_a_leaf_that_is_a_container_too(path):
    with pytest.raises(CorruptData, match=f"'{path}' is a leaf and a container"):
        check_consistent(Manifest({path: tensor()}, {"": Container("dict", ("a",)), path: Container("dict")}), 16, "it")


def test_a_leaf_in_the_place_of_the_state():
    with pytest.raises(CorruptData, match="is a leaf"):
        check_consistent(Manifest({"": tensor()}, {}), 16, "it")


def test_a_size_that_no_number_holds():
    large: dict[str, Entry] = {name: chunked(shape=(1 << 60,), chunk_shape=(1 << 60,)) for name in "abc"}
    with pytest.raises(CorruptData, match="its size"):
        check_consistent(Manifest(large, {}), 16, "it")


# documents


def a_document(metadata: Any = None, manifest: Manifest | None = None) -> document.Document:
    return document.Document(
        store="s",
        id="c" * 32,
        run="main",
        step=1,
        parent=None,
        created=1.0,
        metadata=metadata or {},
        content=b"",
        packs=(),
        manifest=manifest or Manifest({}, {}),
    )


def test_a_small_document_cannot_fill_the_memory():
    decoded = msgspec.msgpack.encode(a_document({"x": "a" * (5 << 20)}))
    with pytest.raises(CorruptData, match="not of the size"):
        document.decode(seal_document(decoded), "it")


@pytest.mark.parametrize("size", [4, 5, 50])
def test_a_document_that_shrinks_well_is_written_so_that_it_can_be_read(size):
    written = a_document({"x": "a" * (size << 20)})
    data = document.encode(written)
    assert document.decode(data, "it") == written
    assert len(data) < (size << 20) / 15


# what is read through them


def store_of(raw: bytes) -> tuple[ChunkStore, bytes]:
    """Chunks of a store whose only chunk has these bytes, and its digest."""
    digest = digest_named("xxh3_128").compute(raw)
    footer = msgspec.msgpack.encode([packs.Frame(digest, RAW.number, 0, len(raw), len(raw), 0)])
    return memory_store(seal_pack(raw, footer)), digest


def arrays(chunks: ChunkStore, **entries: TensorEntry) -> dict[str, object]:
    return load_arrays(chunks, entries, {}, same=(), budget=DEFAULT_BUDGET)


def test_a_chunk_of_another_length_than_its_entry_says():
    chunks, digest = store_of(bytes(256))
    assert arrays(chunks, a=chunked(chunks=digest))
    with pytest.raises(CorruptData, match=r"a: its chunk .* holds 256 bytes instead of 1073741824"):
        arrays(chunks, a=chunked(chunks=digest, shape=(1 << 28,), chunk_shape=(1 << 28,)))


def test_a_value_that_does_not_fit_into_memory():
    chunks, digest = store_of(b"\xc0")
    for size in (1 << 62, 1 << 30):
        entry = ValueEntry(None, size=size, chunk_size=size, chunks=digest)
        with pytest.raises(CkptStoreError, match="a"):
            load_values(chunks, {"a": entry}, allow_pickle=False, budget=DEFAULT_BUDGET)


def test_a_large_value_that_is_no_value():
    chunks, digest = store_of(b"\xc1")
    entry = ValueEntry(None, size=1, chunk_size=1, chunks=digest)
    with pytest.raises(CorruptData, match="a"):
        load_values(chunks, {"a": entry}, allow_pickle=False, budget=DEFAULT_BUDGET)


@pytest.mark.parametrize("change", [{"requires_grad": True}, {"parameter": True, "requires_grad": True}])
def test_ints_that_autograd_tracks(change):
    chunks, _ = store_of(b"x")
    with pytest.raises(CorruptData, match="autograd"):
        arrays(chunks, a=tensor(dtype="int32", **change))


@pytest.mark.parametrize("dtype", ["quint8", "float33", "", "O", "V2147483647", "[" * 3000, "M8[xx]", "(1,2)f4", "\0"])
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_dtypes_that_no_entry_has(library, dtype):
    chunks, _ = store_of(b"x")
    with pytest.raises(CkptStoreError, match=r"^'?a'?: "):
        arrays(chunks, a=tensor(library=library, dtype=dtype))


@pytest.mark.parametrize(
    "encoded",
    [
        {"bytearray": 1 << 40},
        {"bytearray": 5},
        {"datetime": ["2026-01-01", 0, {"zoneinfo": "America"}]},
        {"datetime": ["2026-01-01", 0, {"zoneinfo": "\0"}]},
        {"numpy": ["V2147483647", b""]},
        {"numpy.dtype": "[" * 3000},
        {"Fraction": [1, 0]},
        {1: 2},
        {b"x": 2},
        {"a": 1, "b": 2},
        msgspec.msgpack.Ext(5, b"x"),
        msgspec.msgpack.decode(b"\xd6\xff\0\0\0\1"),
        {"set": [[]]},
        {"enum": ["os:system", "x"]},
        {"torch.Generator": ["cpu", b"x" * 5056]},
    ],
)
def test_values_that_no_commit_has(encoded):
    with pytest.raises(CkptStoreError, match="'a'"):
        decode(encoded, "a")


def test_a_value_that_is_nested_too_deeply():
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(CorruptData, match="'a'"):
        decode(deep, "a")


def test_a_key_that_is_there_twice_is_not_followed_twice():
    containers = {"/".join("a" * depth): Container("dict", ("a", "a")) for depth in range(60)}
    with pytest.raises(CorruptData, match="the same key twice"):
        unflatten(containers, {"/".join("a" * 60): 1})


def test_keys_that_json_does_not_have():
    containers = {"": Container("dict", ("q",)), "q": Container("dict", (msgspec.msgpack.Ext(5, b"x"),))}
    with pytest.raises(CorruptData, match="'q'"):
        unflatten(containers, {})


def test_keys_that_cannot_be_keys():
    containers = {"": Container("dict", ("q",)), "q": Container("dict", ([1],))}
    with pytest.raises(CorruptData, match="'q'"):
        unflatten(containers, {"q/%([1])": 1})


QUANTISED = {"dtype": "qint8", "scale": 0.5, "zero_point": 0}
CHANNELS = {"dtype": "qint8", "axis": 0}
PER_CHANNEL = {
    "q/int_repr": torch.ones(4, dtype=torch.int8),
    "q/scales": torch.ones(4),
    "q/zero_points": torch.zeros(4, dtype=torch.int64),
}


@pytest.mark.parametrize(
    ("kind", "attributes", "parts"),
    [
        ("quantized_per_tensor", {**QUANTISED, "dtype": "qint32"}, {}),
        ("quantized_per_tensor", {**QUANTISED, "dtype": "float32"}, {}),
        ("quantized_per_tensor", QUANTISED, {"q/int_repr": 1}),
        ("quantized_per_tensor", QUANTISED, {"q/int_repr": torch.ones(4)}),
        ("quantized_per_tensor", {}, {}),
        ("quantized_per_channel", CHANNELS, {"q/scales": torch.ones(3), "q/zero_points": torch.zeros(3).long()}),
        ("quantized_per_channel", CHANNELS, {"q/scales": torch.ones(2, 2)}),
        ("quantized_per_channel", {**CHANNELS, "axis": 7}, {}),
        ("sparse_coo", {"size": [2], "coalesced": True}, {}),
        ("sparse_csr", {"size": "x"}, {}),
        ("deque", {}, {}),
        ("deque", {"maxlen": 1 << 70}, {}),
        ("defaultdict", {"factory": []}, {}),
        ("Counter", {"vars": 7}, {}),
        ("namedtuple", {}, {}),
        ("thing", {}, {}),
    ],
)
def test_containers_whose_parts_do_not_belong_together(kind, attributes, parts):
    leaves = PER_CHANNEL | parts
    containers = {
        "": Container("dict", ("q",)),
        "q": Container(kind, ("int_repr", "scales", "zero_points"), attributes=attributes),
    }
    with pytest.raises(CkptStoreError, match="'q'"):
        unflatten(containers, leaves)


# whole stores


def write_store(place: Path, *documents: document.Document) -> None:
    """Documents beside the settings of a new store, which has no catalog then."""
    ckptstore.open(place).close()
    for path in place.glob("catalog.sqlite*"):
        path.unlink()
    own = version.decode((place / version.KEY).read_bytes(), "it").id
    for one in documents:
        path = place / document.document_key(one.run, one.step, one.id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document.encode(msgspec.structs.replace(one, store=own)))


def write_pack(place: Path, builder: packs.PackBuilder) -> None:
    path = place / packs.pack_key("ab" * 16)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(builder.finish()))


HARMLESS = msgspec.structs.replace(a_document(), step=7, id="f" * 32)


@pytest.mark.parametrize(
    "change",
    [
        {"step": 1 << 63},
        {"step": -1},
        {"run": "a@b"},
        {"run": ""},
        {"created": float("nan")},
        {"created": float("inf")},
        {"metadata": {"a": b"bytes"}},
        {"metadata": {"a": float("nan")}},
        {"metadata": {"a": msgspec.msgpack.Ext(5, b"x")}},
        {"id": "no id"},
        {"parent": "no id"},
    ],
)
def test_a_document_that_no_writer_makes_is_left_out_or_kept_whole(tmp_path, change):
    strange = msgspec.structs.replace(a_document(), **change)
    write_store(tmp_path / "store", HARMLESS, strange)
    report = ckptstore.rebuild_catalog(tmp_path / "store")
    assert report.commits + len(report.left_out) == 2
    with ckptstore.open(tmp_path / "store") as store:
        assert 7 in store.steps()
        assert len(store.log()) == report.commits
        store.verify()
        store.gc(grace=0)


def test_documents_that_are_each_others_parents(tmp_path):
    one = msgspec.structs.replace(a_document(), parent="d" * 32)
    other = msgspec.structs.replace(a_document(), id="d" * 32, step=2, parent=one.id)
    write_store(tmp_path / "store", one, other)
    with pytest.raises(CorruptData, match="each other's parents"):
        ckptstore.rebuild_catalog(tmp_path / "store")


def test_two_documents_of_one_id(tmp_path):
    write_store(tmp_path / "store", a_document(), msgspec.structs.replace(a_document(), step=2))
    report = ckptstore.rebuild_catalog(tmp_path / "store")
    with ckptstore.open(tmp_path / "store") as store:
        assert len(store.log()) == report.commits == 2 - len(report.left_out)


def test_small_chunks_that_rest_on_large_ones(tmp_path):
    """On 32 of 4 MiB, in a pack of 20 KB: none of these is read."""
    large = [bytes((4 << 20) - 1) + bytes([number]) for number in range(32)]
    digests, builder = [_XXH3.compute(raw) for raw in large], packs.PackBuilder(sectors=False)
    for raw, digest in zip(large, digests, strict=True):
        builder.add(digest, ZSTD.number, ZSTD.encode(memoryview(raw)), len(raw))
    small = [bytes([number]) for number in range(30)]
    for number, raw in enumerate(small):
        builder.add(_XXH3.compute(raw), RAW.number, raw, 1, b"".join(digests[number : number + 3]))
    shape: dict[str, Any] = {"dtype": "uint8", "itemsize": 1, "shape": (30,), "chunk_shape": (1,)}
    entry = chunked(**shape, chunks=b"".join(map(_XXH3.compute, small)))
    state = msgspec.structs.replace(a_document(manifest=Manifest({"x": entry}, {})), bases=b"".join(digests))
    write_store(tmp_path / "store", state)
    write_pack(tmp_path / "store", builder)
    assert ckptstore.rebuild_catalog(tmp_path / "store").commits == 1
    problems: list[Problem] = []
    with ckptstore.open(tmp_path / "store") as store:
        with pytest.raises(CorruptData, match=r"x: its chunk \w+ rests on one of 4194304 bytes, and holds 1"):
            store.read(1, "x", index=5)
        assert peak_of(lambda: problems.extend(store.verify().problems)) < 16 << 20
    found = [problem.affected for problem in problems if "rests on one of another size" in problem.detail]
    assert found == [("main@1 x",)] * 30


def test_chunks_in_a_long_chain_are_not_tried_one_by_one(tmp_path, monkeypatch):
    """Beside one that a commit needs, and that rests on few of them; it took a minute for each MiB of the pack."""
    links = [struct.pack("<Q", number) * 10 for number in range(300)]
    digests, builder = [_XXH3.compute(raw) for raw in links], packs.PackBuilder(sectors=False)
    for number, (raw, digest) in enumerate(zip(links, digests, strict=True)):
        builder.add(digest, RAW.number, raw, len(raw), digests[number - 1] if number else b"")
    shape: dict[str, Any] = {"dtype": "uint8", "itemsize": 1, "shape": (80,), "chunk_shape": (80,)}
    manifest = Manifest({"x": chunked(**shape, chunks=digests[3])}, {})
    write_store(tmp_path / "store", msgspec.structs.replace(a_document(manifest=manifest), bases=b"".join(digests[:3])))
    write_pack(tmp_path / "store", builder)
    assert ckptstore.rebuild_catalog(tmp_path / "store").commits == 1
    raw_of, tries = ChunkStore.raw, list[Any]()

    def counted(self, *given):
        tries.append(given)
        return raw_of(self, *given)

    monkeypatch.setattr(ChunkStore, "raw", counted)
    with ckptstore.open(tmp_path / "store") as store:
        assert bytes(store.read(1, "x").numpy()) == links[3]
        assert not [problem for problem in store.verify().problems if problem.object.startswith("packs/")]
    assert len(tries) < 3


MEASURE = """
import re, sys
from ckptstore.errors import CkptStoreError
from ckptstore.format import document
read = 0
for name in sys.argv[1:]:
    try:
        document.decode(open(name, "rb").read(), name)
        read += 1
    except CkptStoreError:
        pass
peak = re.search("VmHWM:.*?([0-9]+)", open("/proc/self/status").read())[1]  # ru_maxrss is inherited
print(read, int(peak) >> 10)
"""


def test_the_memory_that_small_documents_take(tmp_path):
    """Of 4 MiB decoded, in which every byte or two is an object; the last two claim more items than there are."""
    nodes = [b"\x80", b"\x90", b"\x91\xa0", b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff"]
    plain = msgspec.msgpack.encode(a_document({"x": 0}))
    for number, node in enumerate(nodes):
        many = ((4 << 20) - len(plain) - 4) // len(node)
        made = seal_document(plain.replace(b"\xa1x\0", b"\xa1x\xdd" + struct.pack(">I", many) + node * many))
        assert len(made) < 3000
        (tmp_path / str(number)).write_bytes(made)
    done = subprocess.run([sys.executable, "-c", MEASURE, *tmp_path.iterdir()], capture_output=True, check=True)
    read, peak = map(int, done.stdout.split())
    assert read == 3
    assert peak < 450
