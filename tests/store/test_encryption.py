"""An encrypted store keeps nothing readable, opens with its key alone, and detects every byte that was altered."""

from __future__ import annotations

import itertools
import os
import pickle
import shutil
import sqlite3
import sys
from contextlib import closing, nullcontext
from typing import Any

import msgspec
import pytest
import torch

import ckptstore
from ckptstore import unlocking
from ckptstore.errors import (
    CatalogError,
    CorruptData,
    InvalidArgument,
    MissingData,
    NotAStore,
    StorageError,
    StorageFull,
    StorageReadOnly,
    StorageUnavailable,
    StoreTooNew,
    WrongKey,
)
from ckptstore.format import keys, version
from ckptstore.format.digests import digest_named
from ckptstore.format.sealing import Sealer
from ckptstore.opening import settings
from ckptstore.storage.local import LocalStorage
from ckptstore.testing.audit import CHUNK_BYTES, assert_exact, assert_nothing_leaked, assert_whole, files, state_of
from ckptstore.testing.equality import assert_same

SECRETS: dict[str, Any] = {
    "zeros": torch.full((4000,), 1234567.0),
    "text": "a secret, a secret " * 200,
    "small": "short secret",
}
MARKS = [b"a secret", b"short secret", b"zeros", b"rosebud", torch.tensor([1234567.0] * 4).numpy().tobytes()]


@pytest.fixture(autouse=True)
def _no_key_around(monkeypatch):
    for name in ("CKPTSTORE_KEY", "CKPTSTORE_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "passphrase"
    path.write_text("correct horse battery staple\n")
    return path


@pytest.fixture
def place(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def site(place, key, monkeypatch):
    """A store with three steps; the key is in the environment."""
    monkeypatch.setenv("CKPTSTORE_KEY_FILE", str(key))
    with ckptstore.open(place, chunk_bytes=CHUNK_BYTES, encrypt=True) as store:
        for step in range(3):
            store.commit(state_of("main", step), step=step)
    return place


def everything(place):
    with closing(sqlite3.connect(place / "catalog.sqlite")) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return b"".join(path.read_bytes() for path in place.rglob("*") if path.is_file())


@pytest.mark.parametrize("digest", ["xxh3_128", "sha256", "blake3"])
def test_nothing_readable_is_stored(place, key, digest):
    metadata = {"note": "rosebud", "loss": 0.5}
    with ckptstore.open(place, digest=digest, encrypt=True, key_file=key, chunk_bytes=CHUNK_BYTES) as store:
        made = store.commit(SECRETS, step=1, metadata=metadata)
        assert made.metadata == metadata
        assert [commit.metadata for commit in store.log()] == [metadata]
        assert_same(store.checkout(1), SECRETS)
    with ckptstore.open(place, key_file=key) as store:
        assert_same(store.checkout(1), SECRETS)
        assert_same(store.read(1, "zeros", index=slice(5, 9)), SECRETS["zeros"][5:9].clone())
        assert store.find(1).metadata == metadata
        assert store.verify().ok
    kept = everything(place)
    assert not [mark for mark in MARKS if mark in kept]
    plain = digest_named(digest)
    chunk = SECRETS["zeros"][:1024].numpy().tobytes()
    assert plain.compute(chunk) not in kept


def test_the_whole_face_works(site):
    assert assert_whole(site) == {("main", step) for step in range(3)}
    with ckptstore.open(site) as store:
        store.commit_async(state_of("main", 3), step=3).result()
        before = len(files(site))
        store.commit(state_of("main", 3), step=4)
        assert len(files(site)) == before + 1
        assert store.diff(3, 4).changes == ()
        assert store.gc(ckptstore.KeepLast(2), grace=0).deleted == (0, 1, 2)
        store.gc(grace=0)
        for step in (3, 4):
            assert_same(store.checkout(step), state_of("main", 3))
        assert store.verify().ok


def test_the_whole_face_works_when_steps_go(site):
    with ckptstore.open(site) as store:
        store.commit(state_of("main", 3), step=3)
        store.delete(0)
        for _ in range(2):
            store.gc(grace=0)
    assert assert_whole(site) == {("main", step) for step in (1, 2, 3)}
    assert_nothing_leaked(site)


def test_without_its_wrapped_key_nobody_opens_it(site):
    (key,) = site.glob("keys/*.key")
    key.unlink()
    with pytest.raises(MissingData, match="has lost what lay below keys/, which no passphrase replaces: bring it back"):
        ckptstore.open(site)


NO_KEYS = [b"", b"{}", b"\0" * 9, b'{"kdf": "scr\xffpt"}']


@pytest.mark.parametrize("content", NO_KEYS)
def test_a_damaged_wrapped_key_is_no_wrong_key(site, key, content):
    (path,) = site.glob("keys/*.key")
    path.write_bytes(content)
    message = f"keys/{path.name} is damaged, which no passphrase replaces: bring it back from a copy"
    for act in (lambda: ckptstore.open(site), lambda: ckptstore.change_key(site, key)):
        with pytest.raises(CorruptData, match=message):
            act()
    assert [path.read_bytes() for path in site.glob("keys/*")] == [content]


def test_one_damaged_key_of_two_keeps_nobody_out(site, key, tmp_path):
    """As an interrupted change of the passphrase may leave them."""
    new = tmp_path / "new"
    new.write_text("tr0ub4dor&3")
    (old,) = site.glob("keys/*.key")
    kept = old.read_bytes()
    ckptstore.change_key(site, new)
    old.write_bytes(kept[:40])
    ckptstore.open(site, key_file=new).close()
    with pytest.raises(WrongKey, match="does not open"):
        ckptstore.open(site, key_file=key)


@pytest.mark.parametrize("damage", [*NO_KEYS, "flipped", "gone", "unreadable"])
def test_who_has_the_store_open_tells_of_its_damaged_key_and_mends_it(site, monkeypatch, damage):
    (path,) = site.glob("keys/*.key")
    whole = path.read_bytes()
    with ckptstore.open(site) as store:
        damage_key(path, damage, monkeypatch)
        assert store.verify("catalog").ok
        for level in ("sizes", "footers", "data"):
            (problem,) = store.verify(level).problems
            assert problem.object == f"keys/{path.name}"
            assert ("is gone" if damage == "gone" else "is damaged") in problem.detail and "repair" in problem.detail
        plan = store.plan_repair()
        assert (plan.key, plan.lost) == (True, ())
        assert plan.execute().key
        assert store.verify().ok
        assert not plan.execute().key and not store.repair().key
    assert path.read_bytes() == whole
    assert assert_whole(site) == {("main", step) for step in range(3)}


def damage_key(path, damage, monkeypatch):
    whole = path.read_bytes()
    if damage == "gone":
        path.unlink()
    elif damage == "unreadable":
        get = LocalStorage.get

        def unreadable(self, key):
            if key.startswith("keys/") and path.exists() and path.stat().st_mtime_ns == written:
                raise CorruptData(f"cannot read {key}: Input/output error")
            return get(self, key)

        written = path.stat().st_mtime_ns
        monkeypatch.setattr(LocalStorage, "get", unreadable)
    elif damage == "flipped":
        at = whole.index(b'"key": "') + 20
        path.write_bytes(whole[:at] + (b"A" if whole[at : at + 1] != b"A" else b"B") + whole[at + 1 :])
    else:
        path.write_bytes(damage)


def test_an_open_store_is_whole_when_its_key_was_changed_meanwhile(site, tmp_path):
    new = tmp_path / "new"
    new.write_text("tr0ub4dor&3")
    with ckptstore.open(site) as store:
        ckptstore.change_key(site, new)
        assert store.verify().ok and not store.repair().key
        assert len(list(site.glob("keys/*.key"))) == 1
        for path in site.glob("keys/*.key"):
            path.write_bytes(b"")
        assert [problem.object[:5] for problem in store.verify("sizes").problems] == ["keys/"]
        assert store.repair().key
    assert_whole(site)


def test_a_store_that_was_opened_for_reading_tells_of_its_key_and_does_not_mend_it(site):
    (path,) = site.glob("keys/*.key")
    with ckptstore.open(site, read_only=True) as store:
        path.unlink()
        assert not store.verify("sizes").ok
        with pytest.raises(StorageReadOnly):
            store.repair()


def test_a_wrong_key_is_reported(site, tmp_path, monkeypatch):
    monkeypatch.delenv("CKPTSTORE_KEY_FILE")
    with pytest.raises(WrongKey, match=r"is encrypted: give key_file= .*, or set CKPTSTORE_KEY_FILE or CKPTSTORE_KEY"):
        ckptstore.open(site)
    other = tmp_path / "other"
    other.write_text("incorrect horse")
    with pytest.raises(WrongKey, match="does not open"):
        ckptstore.open(site, key_file=other)
    monkeypatch.setenv("CKPTSTORE_KEY", "incorrect horse")
    with pytest.raises(WrongKey, match="does not open"):
        ckptstore.open(site)
    with pytest.raises(WrongKey):
        ckptstore.rebuild_catalog(site, catalog=f"sqlite:///{tmp_path}/anew.sqlite")
    other.write_text("\n")
    with pytest.raises(InvalidArgument, match="is empty"):
        ckptstore.open(site, key_file=other)
    with pytest.raises(InvalidArgument, match="gone' cannot be read"):
        ckptstore.open(site, key_file=tmp_path / "gone")


def test_the_key_may_be_in_the_environment(site, monkeypatch):
    monkeypatch.delenv("CKPTSTORE_KEY_FILE")
    monkeypatch.setenv("CKPTSTORE_KEY", "correct horse battery staple")
    with ckptstore.open(site) as store:
        assert_exact(store, "main", 2)


@pytest.mark.parametrize("by", ["argument", "variable"])
def test_a_key_file_in_the_home_folder_may_be_told_so(site, key, monkeypatch, by):
    monkeypatch.setenv("HOME", str(key.parent))
    named = f"~/{key.name}"
    monkeypatch.setenv("CKPTSTORE_KEY_FILE", "gone" if by == "argument" else named)
    with ckptstore.open(site, key_file=named if by == "argument" else None) as store:
        assert store.latest() is not None


def test_without_its_package_nobody_opens_it_or_makes_another(site, key, tmp_path, monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for act in (
        lambda: ckptstore.open(site),
        lambda: ckptstore.open(site, read_only=True),
        lambda: ckptstore.open(tmp_path / "other", encrypt=True),
        lambda: ckptstore.change_key(site, key),
    ):
        with pytest.raises(InvalidArgument, match=r"pip install \"ckptstore\[encryption\]\""):
            act()


def test_a_store_is_not_made_without_a_key(place):
    with pytest.raises(WrongKey):
        ckptstore.open(place, encrypt=True)
    assert not [path for path in place.rglob("*") if path.is_file()]
    with pytest.raises(NotAStore):
        ckptstore.open(place, create=False)


def test_a_plain_store_needs_no_key_and_is_not_taken_for_an_encrypted_one(place, key, monkeypatch):
    with pytest.raises(InvalidArgument, match="give encrypt=True beside key_file="):
        ckptstore.open(place, key_file=key)
    with ckptstore.open(place) as store:
        store.commit({"x": 1}, step=0)
    monkeypatch.setenv("CKPTSTORE_KEY_FILE", str(place / "gone"))
    with ckptstore.open(place) as store:
        assert store.checkout(0) == {"x": 1}
    for believed in ({"encrypt": True}, {"key_file": key}, {"encrypt": True, "key_file": key, "read_only": True}):
        with pytest.raises(InvalidArgument, match="is not encrypted, and stays so"):
            ckptstore.open(place, **believed)
    assert not list(place.glob("keys/*"))
    with pytest.raises(InvalidArgument, match="is not encrypted"):
        ckptstore.change_key(place, key, key_file=key)


def test_who_founds_second_is_told_that_the_store_is_plain(place, key, monkeypatch):
    def founded_meanwhile(*args):
        monkeypatch.undo()
        ckptstore.open(place).close()
        return unlocking.create_key(*args)

    monkeypatch.setattr(settings, "create_key", founded_meanwhile)
    with pytest.raises(InvalidArgument, match="is not encrypted, and stays so"):
        ckptstore.open(place, encrypt=True, key_file=key)
    assert not list(place.glob("keys/*"))


def fail_to_put_settings(monkeypatch, error, *, after):
    put = LocalStorage.put

    def failing(self, name, parts):
        if name != version.KEY or after:
            put(self, name, parts)
        if name == version.KEY:
            raise error

    monkeypatch.setattr(LocalStorage, "put", failing)


@pytest.mark.parametrize("kind", [StorageFull, StorageReadOnly, StorageError])
def test_a_store_that_was_not_made_leaves_no_key(place, key, monkeypatch, kind):
    for _ in range(2):
        with monkeypatch.context() as patched, pytest.raises(kind, match="injected"):
            fail_to_put_settings(patched, kind("injected"), after=False)
            ckptstore.open(place, encrypt=True, key_file=key)
        assert not list(place.glob("keys/*"))
    ckptstore.open(place, encrypt=True, key_file=key).close()
    assert len(list(place.glob("keys/*"))) == 1


@pytest.mark.parametrize(("kind", "after"), [(StorageUnavailable, False), (StorageError, True)])
def test_the_key_of_a_store_that_may_have_been_made_stays(place, key, monkeypatch, kind, after):
    with monkeypatch.context() as patched, pytest.raises(kind, match="injected"):
        fail_to_put_settings(patched, kind("injected"), after=after)
        ckptstore.open(place, encrypt=True, key_file=key)
    assert len(list(place.glob("keys/*"))) == 1
    ckptstore.open(place, encrypt=True, key_file=key).close()


def test_settings_that_somebody_stripped_do_not_make_it_store_in_clear(site, key):
    settings = site / "ckptstore.json"
    config = version.decode(settings.read_bytes(), "here")
    plain = msgspec.structs.replace(config, requires_read=(), requires_write=(), requires_gc=())
    settings.write_bytes(version.encode(plain))
    for believed in ({"encrypt": True}, {"key_file": key}):
        with pytest.raises(InvalidArgument, match="is not encrypted"):
            ckptstore.open(site, **believed)


def test_the_key_of_a_newer_store_is_left_alone(site, key):
    settings = site / "ckptstore.json"
    config = version.decode(settings.read_bytes(), "here")
    settings.write_bytes(version.encode(msgspec.structs.replace(config, requires_write=("encryption", "quantum"))))
    before = files(site)
    with pytest.raises(StoreTooNew, match="quantum"):
        ckptstore.change_key(site, key, key_file=key)
    assert files(site) == before


def test_whatever_bytes_the_environment_holds_are_a_key(place, monkeypatch):
    monkeypatch.setenv("CKPTSTORE_KEY", os.fsdecode(b"\xff\xfe"))
    ckptstore.open(place, encrypt=True).close()
    monkeypatch.delenv("CKPTSTORE_KEY")
    with pytest.raises(InvalidArgument, match="cannot be read"):
        ckptstore.open(place, key_file="a\0b")


def test_the_passphrase_is_changed(site, key, tmp_path, monkeypatch):
    new = tmp_path / "new"
    new.write_text("tr0ub4dor&3")
    packs = {path: path.read_bytes() for path in site.glob("packs/*/*")}
    with pytest.raises(WrongKey):
        ckptstore.change_key(site, key, key_file=new)
    with pytest.raises(InvalidArgument, match="cannot be read"):
        ckptstore.change_key(site, tmp_path / "gone")
    ckptstore.change_key(site, new)
    assert len(list(site.glob("keys/*.key"))) == 1
    with pytest.raises(WrongKey):
        ckptstore.open(site)
    monkeypatch.setenv("CKPTSTORE_KEY_FILE", str(new))
    assert assert_whole(site) == {("main", step) for step in range(3)}
    assert {path: path.read_bytes() for path in packs} == packs


@pytest.mark.parametrize("name", ["{} (copy)", "copy of {}", "{}.bak", ".DS_Store"])
def test_other_files_beside_the_key_do_no_harm(site, key, tmp_path, name):
    new = tmp_path / "new"
    new.write_text("tr0ub4dor&3")
    (old,) = site.glob("keys/*.key")
    other = old.with_name(name.format(old.name))
    other.write_bytes(old.read_bytes())
    ckptstore.change_key(site, new)
    with ckptstore.open(site, key_file=new) as store:
        assert_exact(store, "main", 0)
    assert other.exists()
    assert not old.exists()


def test_an_interrupted_change_of_the_passphrase(site, key, tmp_path):
    new = tmp_path / "new"
    new.write_text("tr0ub4dor&3")
    (old,) = site.glob("keys/*.key")
    kept = old.read_bytes()
    ckptstore.change_key(site, new)
    old.write_bytes(kept)  # as it is before the old one is removed
    for either in (key, new):
        with ckptstore.open(site, key_file=either) as store:
            assert_exact(store, "main", 0)
    ckptstore.change_key(site, key, key_file=new)
    assert len(list(site.glob("keys/*.key"))) == 1


def test_who_opens_it_in_the_midst_of_a_change_of_the_passphrase(site, key, tmp_path, monkeypatch):
    new = tmp_path / "new"
    new.write_text("tr0ub4dor&3")
    (old,) = site.glob("keys/*.key")
    kept, get = old.read_bytes(), LocalStorage.get

    def removed_since_it_was_listed(self, name):
        if name.endswith(old.name):
            old.unlink()
        return get(self, name)

    ckptstore.change_key(site, new)
    for passphrase, opening in ((key, pytest.raises(WrongKey)), (new, nullcontext())):
        old.write_bytes(kept)
        with monkeypatch.context() as patched, opening:
            patched.setattr(LocalStorage, "get", removed_since_it_was_listed)
            ckptstore.open(site, key_file=passphrase).close()


def meanwhile(monkeypatch, verb, act):
    """Let something happen just before the first operation of a verb on a key."""
    operation, acts = getattr(LocalStorage, verb), [act]

    def after_it(self, key, *given):
        if key.startswith("keys/") and acts:
            acts.pop()()
        return operation(self, key, *given)

    monkeypatch.setattr(LocalStorage, verb, after_it)


def test_who_changes_the_passphrase_while_another_does_is_told(site, key, tmp_path, monkeypatch):
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    mine.write_text("tr0ub4dor&3")
    theirs.write_text("hunter2")
    meanwhile(monkeypatch, "delete", lambda: ckptstore.change_key(site, theirs, key_file=key))
    with pytest.raises(WrongKey, match="somebody else changed the key of"):
        ckptstore.change_key(site, mine, key_file=key)
    with pytest.raises(WrongKey):
        ckptstore.open(site, key_file=mine)
    with ckptstore.open(site, key_file=theirs) as store:
        assert_exact(store, "main", 0)


def test_a_passphrase_opens_the_store_while_its_key_is_wrapped_anew(site, key, monkeypatch):
    meanwhile(monkeypatch, "get", lambda: ckptstore.change_key(site, key))
    with ckptstore.open(site, key_file=key) as store:
        assert_exact(store, "main", 0)


def test_altered_and_moved_bytes_do_not_open(site):
    with ckptstore.open(site) as store:
        for pack in site.glob("packs/*/*.pack"):
            whole = pack.read_bytes()
            for position in range(130, len(whole) - 200, 997):
                pack.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
                assert not store.verify().ok, position
                for step in range(3):
                    try:
                        assert_exact(store, "main", step)
                    except CorruptData:
                        continue
            pack.write_bytes(whole)
        one, other, *_ = site.glob("packs/*/*.pack")
        first, second = one.read_bytes(), other.read_bytes()
        one.write_bytes(second)
        other.write_bytes(first)
        with pytest.raises(CorruptData):
            for step in range(3):
                store.checkout(step)
        one.write_bytes(first)
        other.write_bytes(second)
        for step in range(3):
            assert_exact(store, "main", step)


def test_altered_documents_and_metadata_do_not_open(site, tmp_path):
    document, other, _ = sorted(site.glob("manifests/*/*"))
    whole = document.read_bytes()
    for content in (other.read_bytes(), whole[:-1], whole[:40] + bytes([whole[40] ^ 1]) + whole[41:], b""):
        document.write_bytes(content)
        with ckptstore.open(site) as store:
            assert not store.verify().ok
            assert store.repair().documents == 1
            assert store.verify().ok
    assert document.read_bytes() == whole
    with closing(sqlite3.connect(site / "catalog.sqlite")) as database:
        database.execute("UPDATE commits SET metadata = '{\"loss\": 0}' WHERE step = 0")
        database.commit()
    with ckptstore.open(site) as store, pytest.raises(CatalogError, match="main@0"):
        store.log()


def test_a_catalog_made_anew_holds_nothing_readable(place, key):
    with ckptstore.open(place, encrypt=True, key_file=key) as store:
        store.commit({"x": 1}, step=0, metadata={"note": "rosebud"})
    for path in place.glob("catalog.sqlite*"):
        path.unlink()
    ckptstore.rebuild_catalog(place, key_file=key)
    assert b"rosebud" not in everything(place)
    with ckptstore.open(place, key_file=key) as store:
        assert store.find(0).metadata == {"note": "rosebud"}


def test_a_lost_catalog_is_made_anew(site, tmp_path):
    for path in site.glob("catalog.sqlite*"):
        path.unlink()
    assert ckptstore.rebuild_catalog(site).commits == 3
    assert assert_whole(site) == {("main", step) for step in range(3)}


def test_a_copy_mends_it_and_another_store_cannot(site, tmp_path):
    backup = shutil.copytree(site, tmp_path / "backup")
    for path in site.glob("packs/*/*.pack"):
        path.unlink()
    with ckptstore.open(tmp_path / "other", encrypt=True) as other, ckptstore.open(site) as store:
        with pytest.raises(InvalidArgument, match="is no copy"):
            store.repair(other)
        with ckptstore.open(backup) as copy:
            assert store.repair(copy).lost == ()
    assert assert_whole(site) == {("main", step) for step in range(3)}


def test_damage_is_salvaged(site):
    pack = max(site.glob("packs/*/*.pack"), key=lambda path: path.stat().st_size)
    data = bytearray(pack.read_bytes())
    data[-20] ^= 1
    pack.write_bytes(data)
    with ckptstore.open(site) as store:
        assert store.repair().lost == ()
    assert assert_whole(site) == {("main", step) for step in range(3)}


def test_a_bucket_is_read_without_its_catalog(s3, postgres, key):
    options = {"storage_options": s3.options, "key_file": key}
    with ckptstore.open(s3.url, catalog=postgres, encrypt=True, **options) as store:
        store.commit(SECRETS, step=0, metadata={"loss": 1})
    with ckptstore.open(s3.url, **options) as store:
        assert_same(store.checkout(0), SECRETS)
        assert store.find(0).metadata == {"loss": 1}


# the parts


def test_a_sealer_opens_only_what_it_sealed_there():
    sealer = Sealer(bytes(32), "store")
    sealed = sealer.seal("name", 64, b"data", b"bound")
    assert len(sealed) == len(b"data") + 16
    assert pickle.loads(pickle.dumps(sealer)).open("name", 64, sealed, b"bound") == b"data"
    others = [Sealer(bytes(31) + b"\1", "store"), Sealer(bytes(32), "another"), sealer]
    names, positions, bounds = ["name", "other"], [64, 128], [b"bound", b""]
    for other, name, position, bound in itertools.product(others, names, positions, bounds):
        if (other, name, position, bound) != (sealer, "name", 64, b"bound"):
            with pytest.raises(CorruptData):
                other.open(name, position, sealed, bound)
    for wrong in (sealed[:-1], sealed + b"\0", b"", bytes(4), bytes([sealed[0] ^ 1]) + sealed[1:]):
        with pytest.raises(CorruptData):
            sealer.open("name", 64, wrong, b"bound")


def test_no_two_seals_are_alike():
    sealer = Sealer(os.urandom(32), "store")
    sealed = {sealer.seal(name, position, bytes(100)) for name in ("a", "b") for position in range(50)}
    assert len(sealed) == 100


@pytest.mark.parametrize("name", ["xxh3_128", "sha256", "blake3"])
def test_keyed_digests(name):
    plain, one, other = digest_named(name), digest_named(name, bytes(32)), digest_named(name, bytes(31) + b"\1")
    for data in (b"", b"x", bytes(100_000)):
        found = {digest.compute(data) for digest in (plain, one, other)}
        assert len(found) == 3
        assert {len(digest) for digest in found} == {one.size}
        assert one.compute(data) == digest_named(name, bytes(32)).compute(memoryview(bytearray(data)))


def test_what_is_no_wrapped_key_does_not_open():
    good = keys.wrap(bytes(range(32)), b"passphrase", "store")
    assert keys.unwrap(good, b"passphrase", "store") == bytes(range(32))
    assert keys.unwrap(good, b"passphrase", "another") is None
    assert keys.unwrap(good, b"other", "store") is None
    assert keys.is_wrapped(good)
    fields = msgspec.json.decode(good)
    changes = ({"cost": 1 << 40}, {"cost": 3}, {"cost": 0}, {"kdf": "none"}, {"key": ""}, {"salt": 5}, {"x": 1})
    wrong = [msgspec.json.encode(fields | change) for change in changes]
    for data in (*wrong, b"", b"{}", b"[" * 100_000, good[:50], good.replace(b"scrypt", b"scr\xffpt")):
        assert not keys.is_wrapped(data)
        with pytest.raises(CorruptData, match="no wrapped key"):
            keys.unwrap(data, b"passphrase", "store")


def test_what_an_encrypted_store_wrote_here_is_not_of_one_that_is_not(tmp_path):
    place, other, key = tmp_path / "store", tmp_path / "other", tmp_path / "key"
    key.write_text("a passphrase")
    with ckptstore.open(place) as store:
        store.commit({"x": torch.ones(3)}, step=1)
    with ckptstore.open(other, encrypt=True, key_file=key) as store:
        store.commit({"x": torch.ones(3)}, step=1)
        store.tag("best", 1)
    for folder in ("manifests", "tags"):
        shutil.copytree(other / folder, place / folder, dirs_exist_ok=True)
    with ckptstore.open(place) as store:
        assert store.verify().ok
        store.gc(grace=0, sweep=True)
        assert store.checkout(1)["x"].tolist() == [1.0] * 3
