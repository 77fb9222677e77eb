"""Memory that comes back, but never while somebody looks at it."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptstore.format.codecs.blocks import block, cut_off

SIZE = 3_000_000


def address(view):
    return np.frombuffer(view, np.uint8).__array_interface__["data"][0]


@pytest.mark.parametrize("look", [lambda taken: taken, lambda taken: taken[9:][3:12], lambda taken: taken.data[5:][:4]])
def test_memory_is_not_used_again_while_anything_looks_at_it(look):
    view = look(block(SIZE))
    view[:] = bytes([7]) * len(view) if isinstance(view, memoryview) else 7
    others = [block(SIZE) for _ in range(20)]
    for other in others:
        other[:] = 0
    assert set(bytes(view)) == {7}


def test_memory_is_used_again_after_the_last_view_of_it():
    first = block(SIZE)
    place, view = address(first), first[5:].data[3:]
    del first
    assert address(block(SIZE)) != place
    del view
    assert place in {address(taken) for taken in [block(SIZE) for _ in range(20)]}


@given(st.lists(st.tuples(st.integers(0, 5_000_000), st.booleans()), max_size=12))
def test_what_is_held_at_once_is_apart(wishes):
    held: list[np.ndarray] = []
    for size, drop in wishes:
        taken = block(size)
        assert len(taken) >= size
        taken[:1] = len(held)
        held.append(taken)
        if drop:
            held.pop(0)
    spans = sorted((address(taken), len(taken)) for taken in held if len(taken))
    assert all(start + size <= following for (start, size), (following, _) in pairwise(spans))


@pytest.mark.parametrize("size", [0, 300_000, SIZE, 4_100_000, 100 << 20])
@pytest.mark.parametrize("share", [0, 0.1, 0.9, 1])
def test_a_payload_holds_little_more_than_it_needs(size, share):
    taken = block(size)
    assert size <= len(taken) <= max(size, 4 * size // 3)
    taken[:] = 7
    left = cut_off(taken, int(size * share))
    del taken
    assert bytes(left) == bytes([7]) * int(size * share)
