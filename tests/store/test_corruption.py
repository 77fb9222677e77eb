"""Damage anywhere in a store is found by verify, named with the leaves it hits, and never returned as data."""

from __future__ import annotations

import copy
import random
import shutil
import sqlite3
from contextlib import closing, suppress
from typing import Any

import msgspec
import psutil
import pytest
import torch

import ckptstore
from ckptstore.errors import CatalogError, CkptStoreError, CorruptData, MissingData, NotAStore
from ckptstore.format.packs import _FRAME, ALIGN, TAIL_BYTES, Frame, footer_range
from ckptstore.testing.equality import assert_same

STATE: dict[str, Any] = {
    "raw": torch.rand(2000, generator=torch.Generator().manual_seed(0)),
    "squeezed": torch.arange(5000),
    "value": "long text " * 500,
    "inline": torch.tensor([1.0, 2.0]),
    "number": 7,
}
STORED = {"raw", "squeezed", "value"}
STEP = 3


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    place = tmp_path_factory.mktemp("corruption") / "store"
    with ckptstore.open(place, chunk_bytes=4096) as store:
        store.commit(STATE, step=STEP)
    return place


def only(place, pattern):
    (found,) = place.glob(pattern)
    return found


def flip(path, position, bit=3):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(data)


def frames_of(pack):
    data = pack.read_bytes()
    offset, length = footer_range(data[-TAIL_BYTES:], len(data), "it")
    return msgspec.msgpack.decode(data[offset : offset + length], type=list[Frame]), offset, length


def regions_of(pack):
    """Name → position of a byte of every region; of a frame those of every field of its header."""
    frames, footer, footer_length = frames_of(pack)
    size = pack.stat().st_size
    found = {"head": 0, "head's zeros": 40, "footer": footer + 3, "footer's end": footer + footer_length - 1}
    found |= {f"tail {field}": size - TAIL_BYTES + 8 * field for field in range(5)} | {"last byte": size - 1}
    for number, frame in enumerate(frames):
        header = frame.offset - -(-(_FRAME.size + len(frame.digest) + 8) // ALIGN) * ALIGN
        fields = {"magic": 0, "codec": 4, "digest size": 5, "base size": 6, "unused": 7, "raw length": 8, "length": 16}
        fields |= {"checksum": 24, "digest": 32, "header's checksum": 32 + len(frame.digest), "padding": 63}
        found |= {f"frame {number} {name}": header + at for name, at in fields.items()}
        found |= {
            f"frame {number} payload": frame.offset,
            f"frame {number} payload's end": frame.offset + frame.length - 1,
        }
        if frame.length % ALIGN:
            found[f"frame {number} zeros"] = frame.offset + frame.length
    return found


def users(report):
    """The leaves that problems name."""
    return {leaf for problem in report.problems for leaf in problem.affected}


def check_never_returned(store):
    """Whole or by leaf: what was stored, or an error that reports damage."""
    for read in (lambda path: store.read(STEP, path), lambda path: store.checkout(STEP, paths=path)[path]):
        for path, value in STATE.items():
            try:
                found = read(path)
            except CorruptData as error:
                assert path in str(error)
            else:
                assert_same(found, value)


def test_a_flipped_bit_in_every_region_of_a_pack(place):
    pack = only(place, "packs/*/*.pack")
    whole = pack.read_bytes()
    with ckptstore.open(place) as store:
        digests = chunk_users(store)
        frames, _, _ = frames_of(pack)
        for region, position in regions_of(pack).items():
            pack.write_bytes(whole)
            flip(pack, position, bit=position % 8)
            report = store.verify()
            assert report.problems, region
            assert {problem.object for problem in report.problems} == {f"packs/{pack.parent.name}/{pack.name}"}, region
            if region.startswith("frame ") and not region.endswith("zeros"):
                assert users(report) == digests[frames[int(region.split()[1])].digest], region
            if "payload" in region:
                leaf = users(report).pop().split()[1]
                with pytest.raises(CorruptData, match=f"{leaf}: .*run verify"):
                    store.checkout(STEP)
                with pytest.raises(CorruptData, match=f"{leaf}: .*run verify"):
                    store.checkout(STEP, into=copy.deepcopy(STATE))
            check_never_returned(store)
        pack.write_bytes(whole)
        assert store.verify().ok


def chunk_users(store):
    """Digest → "run@step path" of the leaves that it belongs to."""
    size = store._parts.digest.size
    found: dict[bytes, set[str]] = {}
    for path, entry in store.manifest(STEP).items():
        for at in range(0, len(entry.chunks), size):
            found.setdefault(entry.chunks[at : at + size], set()).add(f"main@{STEP} {path}")
    return found


def test_flipped_bits_anywhere_in_a_pack(place):
    pack, chance = only(place, "packs/*/*.pack"), random.Random(0)
    whole = pack.read_bytes()
    with ckptstore.open(place) as store:
        for _ in range(150):
            position = chance.randrange(len(whole))
            pack.write_bytes(whole)
            flip(pack, position, chance.randrange(8))
            assert not store.verify().ok, position
            check_never_returned(store)


def test_flipped_bits_anywhere_in_a_manifest_document(place):
    document = only(place, "manifests/*/*")
    whole = document.read_bytes()
    with ckptstore.open(place) as store:
        for position in range(0, len(whole), 3):
            document.write_bytes(whole)
            flip(document, position, position % 8)
            (problem,) = store.verify().problems
            assert problem.object == document.relative_to(place).as_posix()
            assert problem.affected == (f"main@{STEP}",)
            assert_same(store.checkout(STEP), STATE)


def test_flipped_bits_anywhere_in_the_settings(place):
    settings = place / "ckptstore.json"
    whole = settings.read_bytes()
    for position in range(len(whole)):
        settings.write_bytes(whole)
        flip(settings, position, position % 5)
        try:
            with ckptstore.open(place) as store:
                assert_same(store.checkout(STEP), STATE)  # white space has no meaning
        except (NotAStore, ckptstore.StoreTooNew) as error:
            assert str(place) in str(error)


@pytest.mark.parametrize("keep", [0, 1, 63, 64, 200, -1, -41])
def test_a_pack_cut_short(place, keep):
    pack = only(place, "packs/*/*.pack")
    pack.write_bytes(pack.read_bytes()[:keep])
    with ckptstore.open(place) as store:
        report = store.verify()
        assert any("bytes, the catalog says" in problem.detail for problem in report.problems)
        assert users(report) <= {f"main@{STEP} {path}" for path in STORED}
        check_never_returned(store)
        if keep >= 0:
            assert users(report) == {f"main@{STEP} {path}" for path in STORED}
            with pytest.raises(CorruptData, match="run verify"):
                store.checkout(STEP)


@pytest.mark.parametrize("keep", [0, -1])
def test_a_cut_document_is_seen_by_its_size(place, keep):
    document = only(place, "manifests/**/*.*")
    document.write_bytes(document.read_bytes()[:keep])
    with ckptstore.open(place) as store:
        (problem,) = store.verify("sizes").problems
        assert "bytes in place of" in problem.detail and problem.affected == (f"main@{STEP}",)


def test_a_missing_pack(place):
    pack = only(place, "packs/*/*.pack")
    pack.unlink()
    with ckptstore.open(place) as store:
        report = store.verify()
        assert {problem.detail for problem in report.problems} == {"is missing"}
        assert users(report) == {f"main@{STEP} {path}" for path in STORED}
        with pytest.raises(MissingData, match=f"raw: pack {pack.stem} is not in {place}"):
            store.read(STEP, "raw")
        assert_same(store.read(STEP, "inline"), STATE["inline"])
        with pytest.raises(ckptstore.GcRefused, match=pack.name):
            store.gc(keep=ckptstore.KeepLast(0), grace=0)
        assert store.steps() == [STEP]


def test_swapped_packs(place):
    with ckptstore.open(place) as store:
        store.commit({"raw": STATE["raw"] + 1, "squeezed": STATE["squeezed"] + 1, "value": STATE["value"] * 2}, step=4)
        one, other = place.glob("packs/*/*.pack")
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
        named = users(store.verify())
        assert named == {f"main@{step} {path}" for step in (STEP, 4) for path in STORED}
        check_never_returned(store)
        with pytest.raises(CorruptData):
            store.checkout(STEP)


def test_swapped_and_missing_documents(place):
    with ckptstore.open(place) as store:
        store.commit({"x": 1}, step=4)
        one, other = sorted(place.glob("manifests/*/*"))
        content = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(content)
        assert [problem.affected for problem in store.verify().problems] == [(f"main@{STEP}",), ("main@4",)]
        one.unlink()
        other.write_bytes(b"")
        assert [problem.object for problem in store.verify().problems] == [
            path.relative_to(place).as_posix() for path in (one, other)
        ]
        assert_same(store.checkout(STEP), STATE)


def test_a_record_altered_in_the_catalog(place):
    for change in (
        "UPDATE commits SET step = 9",
        "UPDATE commits SET metadata = '{\"loss\": 0}'",
        "UPDATE commits SET content = x'00'",
        "UPDATE manifests SET data = x'00'",
        'UPDATE chunks SET "offset" = "offset" + 64',
        "UPDATE chunks SET pack = pack, codec = 1 - codec",
        "UPDATE chunks SET digest = randomblob(16)",
        "DELETE FROM chunks",
        "UPDATE packs SET size = size + 1",
        "UPDATE packs SET state = 'condemned'",
    ):
        with closing(sqlite3.connect(place / "catalog.sqlite")) as database:
            kept = database.serialize()
            database.execute("PRAGMA foreign_keys = OFF")
            assert database.execute(change).rowcount
            database.commit()
        with ckptstore.open(place) as store:
            assert not store.verify().ok, change
            if "step" not in change:
                with suppress(CorruptData):
                    assert_same(store.checkout(STEP), STATE)
        for log in place.glob("catalog.sqlite-*"):
            log.unlink()
        (place / "catalog.sqlite").write_bytes(kept)
        with ckptstore.open(place) as store:
            assert store.verify().ok


def test_damaged_pages_of_the_catalog(place):
    catalog, chance = place / "catalog.sqlite", random.Random(0)
    with closing(sqlite3.connect(catalog)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    whole, raised = catalog.read_bytes(), 0
    for start in range(0, len(whole), 4096):
        catalog.write_bytes(whole[:start] + chance.randbytes(4096) + whole[start + 4096 :])
        try:
            with ckptstore.open(place) as store:
                assert not store.verify().ok
                assert_same(store.checkout(STEP), STATE)
        except CkptStoreError as error:
            assert isinstance(error, CatalogError | CorruptData | ckptstore.NotFound | ckptstore.FormatError), start
            raised += 1
    assert raised


def test_a_catalog_of_another_store(place, tmp_path):
    with ckptstore.open(tmp_path / "other", chunk_bytes=4096) as other:
        other.commit({"raw": STATE["raw"] * 2}, step=STEP)
    shutil.copy(tmp_path / "other" / "catalog.sqlite", place / "catalog.sqlite")
    with pytest.raises(ckptstore.CatalogError, match="is of another store") as caught:
        ckptstore.open(place)
    assert_closed(place, caught.value)


def test_an_opening_that_fails_leaves_nothing_open(place):
    with closing(sqlite3.connect(place / "catalog.sqlite", isolation_level=None)) as database:
        database.execute("UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(ckptstore.SchemaTooNew) as caught:
        ckptstore.open(place)
    assert_closed(place, caught.value)


def assert_closed(place, error):
    """Even while somebody holds on to the error, and with it to all that stands on the stack."""
    assert error.__traceback__ is not None
    names = [opened.path for opened in psutil.Process().open_files()]
    assert not [name for name in names if name.startswith(str(place))]


def test_packs_of_another_time(place):
    shutil.rmtree(place / "packs")
    with ckptstore.open(place) as store:
        assert not store.verify().ok
        with pytest.raises(MissingData):
            store.checkout(STEP)
        with pytest.raises(ckptstore.GcRefused, match="belong together"):
            store.gc(grace=0)
