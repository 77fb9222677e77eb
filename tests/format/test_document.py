import re
import struct

import msgspec
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.errors import CorruptData, NotAStore, StoreTooNew
from ckptstore.format import document, version
from ckptstore.format.digests import checksum, digest_named
from ckptstore.format.manifest import (
    Container,
    Manifest,
    TensorEntry,
    ValueEntry,
    chunk_digests,
    entry_bytes,
    logical_bytes,
)
from ckptstore.format.version import StoreConfig

NAMES = st.text(max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, min_size=1, max_size=1),
    max_leaves=5,
)  # fmt: skip
SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)
TENSORS = st.builds(
    TensorEntry,
    library=st.sampled_from(["torch", "numpy"]),
    dtype=st.sampled_from(["float32", "bfloat16"]),
    itemsize=st.sampled_from([2, 4]),
    shape=SHAPES,
    chunk_shape=SHAPES,
    chunks=st.binary(max_size=64),
    inline=st.binary(max_size=64),
    order=st.none() | SHAPES,
    requires_grad=st.booleans(),
    parameter=st.booleans(),
)
ENTRIES = TENSORS | st.builds(ValueEntry, VALUES) | st.builds(ValueEntry, st.none(), *2 * [st.integers(0, 99)])
CONTAINERS = st.builds(Container, NAMES, st.lists(VALUES, max_size=3).map(tuple), NAMES)
ENTRIES_BY_PATH = st.dictionaries(NAMES, ENTRIES, max_size=3)
MANIFESTS = st.builds(Manifest, ENTRIES_BY_PATH, st.dictionaries(NAMES, CONTAINERS, max_size=3))


def a_document(manifest=None, run="main", step=7, parent=None, metadata=None):
    return document.Document(
        store="s" * 32,
        id="c" * 32,
        run=run,
        step=step,
        parent=parent,
        created=1.5,
        metadata=metadata or {"loss": 0.5},
        content=b"digest",
        packs=("p" * 32,),
        manifest=manifest or Manifest({"a": ValueEntry(3)}, {"": Container("dict", ("a",))}),
    )


@given(MANIFESTS, NAMES, st.integers(0, 2**63 - 1), st.none() | NAMES, st.dictionaries(NAMES, VALUES, max_size=2))
def test_round_trip(manifest, run, step, parent, metadata):
    written = a_document(manifest, run, step, parent, metadata)
    assert document.decode(document.encode(written), "x") == written


def test_a_copy_names_what_it_is_a_copy_of():
    made = a_document()
    assert made.original == document.Origin("c" * 32, 1.5)
    copy = msgspec.structs.replace(made, id="d" * 32, created=9.5, origin=made.original)
    assert document.decode(document.encode(copy), "x").original == made.original


@given(MANIFESTS)
def test_the_same_manifest_has_the_same_bytes(manifest):
    copy = document.decode(document.encode(a_document(manifest)), "x").manifest
    assert document.encode_manifest(copy) == document.encode_manifest(manifest)


def test_every_flipped_bit_and_every_cut_is_found():
    data = document.encode(a_document())
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptData, match="the/key"):
            document.decode(bytes(damaged), "the/key")
    for length in range(len(data)):
        with pytest.raises(CorruptData):
            document.decode(data[:length], "the/key")


def sealed(decoded, *, frame=None):
    """A document whose checksum fits, whatever is in it."""
    head = struct.Struct("<8sQQQ")
    body = frame or zstandard.compress(decoded)
    bare = head.pack(b"ckptmanf", len(body), len(decoded), 0)
    return head.pack(b"ckptmanf", len(body), len(decoded), checksum(bare + body)) + body + b"ckptmend"


FIELDS = msgspec.msgpack.decode(msgspec.msgpack.encode(a_document()))


def test_the_schema_is_checked():
    for more in ({}, {"from a later version": 1}):
        assert document.decode(sealed(msgspec.msgpack.encode(FIELDS | more)), "x") == a_document()
    entry = {"library": "jax", "dtype": "f", "itemsize": 4, "shape": [], "chunk_shape": []}
    bad = [
        {"step": "7"},
        {"packs": [1]},
        {"metadata": None},
        {"manifest": [{}]},
        {"manifest": [{"a": ["thing", 3]}, {}]},
        {"manifest": [{"a": ["tensor", "torch"]}, {}]},
        {"manifest": [{"a": ["tensor", *entry.values()]}, {}]},
    ]
    for change in bad:
        with pytest.raises(CorruptData, match="the/key"):
            document.decode(sealed(msgspec.msgpack.encode(FIELDS | change)), "the/key")
    for field in FIELDS.keys() - {"bases", "origin"}:
        with pytest.raises(CorruptData, match=field):
            document.decode(sealed(msgspec.msgpack.encode({k: v for k, v in FIELDS.items() if k != field})), "x")


@pytest.mark.parametrize("claim", [0, 1 << 20, 1 << 33, 1 << 50, (1 << 64) - 3])
def test_a_frame_that_claims_another_size_is_refused_before_memory_is_taken(claim):
    frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", claim) + b"\x01\x00\x00"
    with pytest.raises(CorruptData, match="the/key"):
        document.decode(sealed(b"four", frame=frame), "the/key")


def test_deep_nesting_is_refused():
    deep = msgspec.msgpack.encode(FIELDS | {"metadata": {}}).replace(
        b"metadata\x80", b"metadata\x81\xa1a" + b"\x91" * 10**5
    )
    with pytest.raises(CorruptData, match="the/key"):
        document.decode(sealed(deep), "the/key")


@given(st.binary(max_size=200))
def test_hostile_bytes_are_no_document(data):
    with pytest.raises(CorruptData):
        document.decode(data, "x")


RUNS = st.text(min_size=1, max_size=200) | st.sampled_from(
    [".", "..", "a/b", "é" * 200, "é" * 199, "Exp", "exp", "%45%xp"]
)


@given(RUNS, RUNS)
def test_keys_of_two_runs_never_meet(one, other):
    first, second = (document.document_key(run, 3, "c" * 32) for run in (one, other))
    assert (first.lower() == second.lower()) == (one == other)
    assert re.fullmatch(r"manifests/[\w%-][\w%.-]{0,120}/000000000003\.c{32}\.manifest", first, re.ASCII)


def test_bytes_of_entries():
    tensor = TensorEntry("torch", "float32", 4, (3, 5), (2, 5), b"1" * 32)
    assert chunk_digests(tensor, 16) == [b"1" * 16, b"1" * 16]
    assert entry_bytes(tensor) == 60
    assert entry_bytes(ValueEntry(None, size=5000, chunk_size=4096)) == 5000
    tied = Manifest({"a": tensor, "b": tensor}, {}, (("a", "b"),))
    assert logical_bytes(tied) == 60


def config(**changes):
    fields: dict = {"format": 1, "id": "i" * 32, "digest": "xxh3_128", "chunk_bytes": 4096, "created": 1.0}
    return StoreConfig(**(fields | changes))


def test_settings_round_trip():
    found = version.decode(version.encode(config(requires_read=("planes",))), "/place")
    assert (found.id, found.digest, found.requires_read) == ("i" * 32, "xxh3_128", ("planes",))


def test_every_flipped_bit_of_the_settings_is_found():
    data = version.encode(config())
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        try:
            found = version.decode(bytes(damaged), "/place")
        except (NotAStore, StoreTooNew) as error:
            assert "/place" in str(error)
        else:  # white space may be another, and nothing else
            assert found == version.decode(data, "/place")


def test_every_cut_of_the_settings_is_found():
    data = version.encode(config())
    for length in range(len(data.rstrip())):
        with pytest.raises(NotAStore):
            version.decode(data[:length], "/place")


@pytest.mark.parametrize(
    "change", [{"chunk_bytes": 8192}, {"digest": "sha256"}, {"requires_read": []}, {"checksum": ""}]
)
def test_altered_settings_are_refused(change):
    written = msgspec.json.decode(version.encode(config(requires_read=("planes",))))
    with pytest.raises(NotAStore, match=r"/place/ckptstore\.json was altered"):
        version.decode(msgspec.json.encode(written | change), "/place")


@pytest.mark.parametrize("data", [b"", b"{}", b"[1]", b"null", b'{"format": true}', b'{"format": 1}', b"[" * 10**5])
def test_what_no_settings_are(data):
    with pytest.raises(NotAStore, match=r"/place/ckptstore\.json"):
        version.decode(data, "/place")


@given(st.binary(max_size=100))
def test_hostile_settings(data):
    with pytest.raises(NotAStore):
        version.decode(data, "/place")


def test_a_newer_format_is_refused_even_when_it_is_unreadable_here():
    with pytest.raises(StoreTooNew, match=r"format 2.*upgrade"):
        version.decode(b'{"format": 2, "everything": "else"}', "/place")


def test_an_unknown_feature_is_refused():
    version.check_features((), "read", "/place")
    with pytest.raises(StoreTooNew, match=r"to read /place needs delta, planes.*upgrade"):
        version.check_features(("planes", "delta"), "read", "/place")


def test_digest_names():
    with pytest.raises(ValueError, match="xxh3_128, sha256, blake3"):
        digest_named("md5")
