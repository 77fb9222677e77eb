"""Fuzz targets: each makes something hostile of some bytes, hands it to a reader, and raises unless what comes of it
is an error of ckptstore's tree or correct data.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from ckptstore.administering import rebuild_catalog
from ckptstore.chunkstore import DEFAULT_BUDGET, ChunkStore
from ckptstore.chunkstore.grouping import ignore
from ckptstore.chunkstore.later import LOOPS
from ckptstore.errors import CkptStoreError
from ckptstore.format import document, packs, version
from ckptstore.format.codecs import Form, codec_numbered, tools
from ckptstore.format.codecs.loops import Loops
from ckptstore.format.digests import Digest, digest_named
from ckptstore.format.grid import Grid
from ckptstore.format.manifest import (
    Entry,
    Manifest,
    TensorEntry,
    check_consistent,
    chunk_digests,
    entry_bytes,
    logical_bytes,
)
from ckptstore.operations.diff import compare_commits
from ckptstore.operations.loading.checkout import checkout
from ckptstore.operations.loading.load import load_arrays
from ckptstore.operations.loading.restore import restore
from ckptstore.operations.ranks.groups import Seat
from ckptstore.operations.view import ManifestView
from ckptstore.state.arrays import chunk_bytes
from ckptstore.state.tensors import TensorLeaf
from ckptstore.store import Store, open_store
from ckptstore.testing.equality import assert_same
from ckptstore.testing.hostile import (
    hostile_document,
    hostile_fields,
    hostile_pack,
    hostile_settings,
    key_of,
    memory_store,
    state_at,
    template,
)
from ckptstore.testing.mutations import Choices, mutate_bytes

_XXH3 = digest_named("xxh3_128")
_NAME = "ab" * 16


def settings(data: bytes) -> None:
    """`ckptstore.json`."""
    with suppress(CkptStoreError):
        config = version.decode(hostile_settings(Choices(data)), "/place")
        assert version.decode(version.encode(config), "/place") == config
        assert config.format == version.FORMAT
        assert 4096 <= config.chunk_bytes <= 1 << 30
        digest_named(config.digest)


def pack(data: bytes) -> None:
    """A pack: its tail, its footer, its frames, and what these decode to."""
    made = hostile_pack(Choices(data))
    for _ in packs.problems(memoryview(made), _NAME):
        pass
    with suppress(CkptStoreError):
        tail = made[-packs.TAIL_BYTES :]
        offset, length = packs.footer_range(tail, len(made), _NAME)
        for frame in packs.read_footer(made[offset : offset + length], tail, _NAME):
            assert frame.offset + frame.length <= offset
            _decode_frame(made, frame)


def _decode_frame(made: bytes, frame: packs.Frame) -> None:
    with suppress(CkptStoreError):
        raw = memoryview(bytearray(frame.raw_length))
        codec_numbered(frame.codec).decode(memoryview(made)[frame.offset : frame.offset + frame.length], raw)


def payload(data: bytes) -> None:
    """A frame's payload, any bytes or an altered one, into a buffer of some length."""
    choices = Choices(data)
    codec = codec_numbered(choices.below(4))
    length = choices.one_of([0, 1, 100, 4096])
    plain = choices.take(choices.below(100)).ljust(length, b"x")[:length]
    form, bases = Form(choices.one_of([1, 2, 4, 8]), bool(choices.below(2))), [memoryview(bytes(length))]
    made = bytes(codec.encode(memoryview(plain), form, bases))
    encoded = mutate_bytes(made, choices) if choices.below(4) else choices.rest()
    out = memoryview(bytearray(length))
    with suppress(CkptStoreError):
        codec.decode(memoryview(encoded), out, bases)
        assert codec.number or out == encoded


def manifest(data: bytes) -> None:
    """A manifest document."""
    choices = Choices(data)
    raw = choices.below(8) == 7
    made = choices.rest() if raw else hostile_document(hostile_fields(choices), choices)
    with suppress(CkptStoreError):
        read = document.decode(made, "it")
        again = document.encode(read)
        assert document.encode(document.decode(again, "it")) == again  # NaN is not equal to itself, its bytes are
        check_consistent(read.manifest, _XXH3.size, "it")
        assert 0 <= logical_bytes(read.manifest) < 1 << 63
        for entry in read.manifest.entries.values():
            chunk_digests(entry, _XXH3.size)
            assert entry_bytes(entry) >= 0


def commit(data: bytes) -> None:
    """One commit, used without a catalog: its document or its pack was altered."""
    choices = Choices(data)
    if choices.below(3):
        _use_commit(hostile_document(hostile_fields(choices), choices), template().whole_pack, intact=False)
    else:
        _use_commit(template().first_document, hostile_pack(choices), intact=True)


def _use_commit(made: bytes, whole: bytes, *, intact: bool) -> None:
    with suppress(CkptStoreError):
        read, chunks = document.decode(made, "it"), memory_store(whole)
        check_consistent(read.manifest, chunks.digest.size, "it")
        view = _view(read)
        with suppress(CkptStoreError):
            restore(chunks, view, state_at(0), None, seat=Seat(0, 1), strict=True, allow_cast=True, **_READING)
        with suppress(CkptStoreError):
            _check_arrays(chunks, read.manifest)
        before = _view(document.decode(template().first_document, "it"))
        with suppress(CkptStoreError):
            compare_commits(before, view, chunks.digest.size)
        found = checkout(chunks, view, None, skip_damaged=False, **_READING)
        if intact:
            assert_same(found, state_at(1))


_READING: dict[str, Any] = {"allow_pickle": False, "budget": DEFAULT_BUDGET, "advance": ignore}


def _view(read: document.Document) -> ManifestView:
    address = f"{read.run}@{read.step}"
    record: Any = SimpleNamespace(
        run=read.run, step=read.step, address=address, logical_bytes=logical_bytes(read.manifest)
    )
    return ManifestView(record, read.manifest)


def _check_arrays(chunks: ChunkStore, read: Manifest) -> None:
    leaves = load_arrays(chunks, read.entries, {}, same=read.aliases, budget=DEFAULT_BUDGET)
    for path, leaf in leaves.items():
        _check_leaf(read.entries[path], leaf, chunks.digest)


def store(data: bytes) -> None:
    """A whole store in which one object was altered: its catalog is rebuilt, everything is read, and gc runs."""
    choices = Choices(data)
    known, what = template(), choices.below(8)
    objects = dict(known.objects)
    if what == 0:
        objects[version.KEY] = hostile_settings(choices)
    elif what <= 2:
        objects[known.pack] = hostile_pack(choices)
    else:
        key = choices.one_of(known.documents)
        fields = hostile_fields(choices, known.documents.index(key))
        del objects[key]
        objects[key_of(fields) or key] = hostile_document(fields, choices)
    _use_store(objects, intact=what <= 2)


def _use_store(objects: Mapping[str, bytes], *, intact: bool) -> None:
    """When all documents are `intact`, a checkout is exact or fails."""
    with tempfile.TemporaryDirectory() as folder, suppress(CkptStoreError):
        place = Path(folder, "store")
        for key, content in objects.items():
            Path(place, key).parent.mkdir(parents=True, exist_ok=True)
            Path(place, key).write_bytes(content)
        rebuild_catalog(place)
        with open_store(place, create=False) as opened:
            _use(opened, intact=intact)


def _use(opened: Store, *, intact: bool) -> None:
    opened.verify()
    for found in opened.log():
        with suppress(CkptStoreError):
            _read_leaves(opened, found.step)
            state = opened.checkout(found.step)
            if intact:
                assert_same(state, state_at(found.step))
        with suppress(CkptStoreError):
            opened.diff(found, 2, values=True)
        with suppress(CkptStoreError):
            opened.checkout(found, into=state_at(0))
    opened.gc(grace=0)


def _read_leaves(opened: Store, step: int) -> None:
    for path, entry in opened.manifest(step).items():
        with suppress(CkptStoreError):
            _check_leaf(entry, opened.read(step, path), _XXH3)


def _check_leaf(entry: Entry, leaf: Any, digest: Digest) -> None:
    """Raises AssertionError unless an array has the form and the digests that its entry says."""
    if not isinstance(entry, TensorEntry):
        return
    found = TensorLeaf(leaf)
    assert (found.library, found.dtype, found.shape) == (entry.library, entry.dtype, entry.shape)
    if not entry.chunks:
        assert chunk_bytes(leaf, (0,) * leaf.ndim, found.shape) == entry.inline
        return
    grid = Grid(entry.shape, entry.chunk_shape)
    for number, expected in enumerate(chunk_digests(entry, digest.size)):
        assert digest.compute(chunk_bytes(leaf, *grid.box(number))) == expected


TARGETS: dict[str, Callable[[bytes], None]] = {
    target.__name__: target for target in (settings, pack, payload, manifest, commit, store)
}
"""By name."""


class CodeRan(BaseException):
    """Something was executed that bytes asked for."""


_EXECUTING = {"exec", "pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork", "subprocess.Popen"}
_watching = False


@contextmanager
def no_code() -> Iterator[None]:
    """Raises CodeRan as soon as this process unpickles, executes or starts anything; importing a file is none of it.

    Loops are numpy's meanwhile: compiling others executes what numba writes.
    """
    global _watching  # noqa: PLW0603 - an audit hook stays for ever
    _prepare()
    LOOPS.settle()
    with patch.object(tools, "fastest_loops", lambda *, compiling: Loops):
        _watching = True
        try:
            yield
        finally:
            _watching = False


@cache
def _prepare() -> None:
    """Libraries execute code of their own when they are first used."""
    for target in TARGETS.values():
        target(b"")
    _use_store(template().objects, intact=True)
    sys.addaudithook(_refuse)


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if not _watching or event not in _EXECUTING:
        return
    importing = event == "exec" and Path(arguments[0].co_filename).is_file()
    if not importing:
        raise CodeRan(f"{event} {arguments}")
