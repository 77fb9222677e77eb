import os

import torch

import ckptstore
from ckptstore.chunkstore import ChunkWriter
from ckptstore.chunkstore.glances import Glances

LARGE = 3 << 20


def test_what_looks_the_same_is_steady():
    glances, same, changed = Glances(), bytearray(os.urandom(LARGE)), bytearray(os.urandom(LARGE))

    def look():
        return glances.steady({"same": memoryview(same), "changed": memoryview(changed)})

    assert look() == set()
    changed[2 << 20] ^= 1
    assert look() == {"same"}
    assert look() == {"same", "changed"}
    assert glances.steady({"same": memoryview(same)[1:]}) == set()
    assert look() == set()


def test_small_arrays_are_not_looked_at():
    glances, small = Glances(), memoryview(bytes(1000))
    assert glances.steady({"a": small}) == glances.steady({"a": small}) == set()


def test_what_changed_is_written_first_and_all_of_it_is_there(tmp_path, monkeypatch):
    state = {f"layer{number}": torch.randn(1 << 19) for number in range(6)}
    written: list[tuple[int, bool]] = []
    write = ChunkWriter.write

    def watched(self, pieces):
        def each():
            for piece in pieces:
                written.append((piece.data[0], piece.likely_new))
                yield piece

        return write(self, each())

    monkeypatch.setattr(ChunkWriter, "write", watched)
    with ckptstore.open(tmp_path / "store") as store:
        store.commit(state, step=0)
        for number in (5, 2):
            state[f"layer{number}"] += 1
        written.clear()
        store.commit(state, step=1)
        first = [int(state[f"layer{number}"].view(torch.uint8)[0]) for number in (2, 5, 0, 1, 3, 4)]
        assert written == [(byte, place < 2) for place, byte in enumerate(first)]
        found = store.checkout(1)
    assert all(torch.equal(found[name], state[name]) for name in state)
    assert list(found) == list(state)
