"""A plane most of whose bytes are one value, cut into where the others are and what they are.

A symbol takes a bit at least, however common. Eight bytes' places are one symbol, and the common ones are none.
"""

from __future__ import annotations

import numpy as np

from ckptstore.format.codecs.cutting import Plane


def thin(plane: Plane, common: int) -> tuple[Plane, Plane]:
    """A bit for each byte, set where it is not the common one, and the bytes that are not."""
    others = plane != common
    return np.packbits(others), plane[others]


def places(bits: Plane, count: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which of `count` bytes are not the common one."""
    return np.unpackbits(bits, count=count).view(np.bool_)


def thicken(others: Plane, where: np.ndarray[tuple[int], np.dtype[np.bool_]], common: int) -> Plane:
    """The plane again."""
    plane = np.full(len(where), common, np.uint8)
    plane[where] = others
    return plane
