"""Writes the golden stores of the current format: `make.py`, once for each. What is there stays as it is.

The states are built from arithmetic alone, so that every later version of torch and numpy builds them again.
"""

from __future__ import annotations

import datetime as dt
import math
import sqlite3
import uuid
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import torch

import ckptstore
from ckptstore.format.version import FORMAT
from ckptstore.testing.states import Colour, Frozen, Pair

HERE = Path(__file__).parent
DIGESTS = ("xxh3_128", "sha256", "blake3")
WITH_CATALOG = "xxh3_128"
DTYPES = [
    *("bfloat16", "bits16", "bits1x8", "bits2x4", "bits4x2", "bits8", "bool", "complex128", "complex32"),
    *("complex64", "float16", "float32", "float4_e2m1fn_x2", "float64", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "int1", "int16", "int2", "int3", "int32", "int4"),
    *("int5", "int6", "int64", "int7", "int8", "uint1", "uint16", "uint2", "uint3", "uint32", "uint4", "uint5"),
    *("uint6", "uint64", "uint7", "uint8"),
]


def noise(count: int, seed: int = 1) -> bytearray:
    """Bytes that do not shrink."""
    made = bytearray()
    for _ in range(count):
        seed = (seed * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        made.append(seed >> 56)
    return made


def tensor(dtype: str, nbytes: int, seed: int = 1) -> torch.Tensor:
    """One dim of any bits."""
    bits = noise(nbytes, seed)
    if dtype == "bool":
        bits = bytearray(bit & 1 for bit in bits)
    return torch.frombuffer(bits, dtype=torch.uint8).view(getattr(torch, dtype))


def arrays() -> dict[str, Any]:
    grid = tensor("int32", 8000).view(50, 40)
    return {
        "chunked": {name: tensor(name, 160, seed) for seed, name in enumerate(DTYPES)},
        "inline": {name: tensor(name, 16, seed) for seed, name in enumerate(DTYPES)},
        "many chunks": tensor("int32", 12_000),
        "zeros": torch.zeros(5000, dtype=torch.int16),
        "grid": grid,
        "turned": grid.t(),
        "number": torch.tensor(7, dtype=torch.int64),
        "nothing": torch.empty(0, 3),
        "tracked": torch.arange(40, dtype=torch.float32).requires_grad_(),
        "parameter": torch.nn.Parameter(torch.arange(6, dtype=torch.bfloat16)),
        "frozen": torch.nn.Parameter(torch.arange(30, dtype=torch.float64), requires_grad=False),
        "numpy": [
            np.frombuffer(bytes(noise(600)), ">i2").reshape(20, 15),
            np.asfortranarray(np.arange(24.0).reshape(4, 6)),
            np.array(["a", "né", ""]),
            np.array([b"a\0b", b""]),
            np.array(["2026-01-02", "NaT"], "M8[ns]"),
            np.array([(1, 2.5)], [("a", ">i4"), ("b", "<f8")]),
            np.float16(1.5),
        ],
    }


def composites() -> dict[str, Any]:
    eye, tied = torch.eye(4), torch.arange(100, dtype=torch.float32)
    return {
        "tied": {"one": tied, "again": tied, "small": [eye[0].clone()] * 2},
        "coo": eye.to_sparse(),
        "csr": eye.to_sparse_csr(),
        "csc": eye.to_sparse_csc(),
        "bsr": eye.to_sparse_bsr((2, 2)),
        "bsc": eye.to_sparse_bsc((2, 2)),
    }


def values() -> dict[str, Any]:
    return {
        "scalars": [
            None,
            True,
            -1,
            1 << 63,
            -(1 << 70),
            0.1,
            -0.0,
            math.inf,
            math.nan,
            "né",
            "\ud800",
            b"\0\xff",
            1 - 2j,
        ],
        "tuples": (1, (2.5, ("x",)), []),
        "sets": [{1, 2, "x"}, frozenset({(1, 2)})],
        "numbers": [Decimal("1.10"), Fraction(1, 3), range(1, 9, 2), slice(None, 5, None), ...],
        "moments": [dt.datetime(2026, 1, 2, 3, 4, 5, 6, dt.UTC), dt.date(2026, 1, 2), dt.timedelta(1, 2, 3)],
        "names": [uuid.UUID(int=5), PurePosixPath("a/b"), bytearray(b"xyz"), Colour.RED, Colour.BLUE],
        "torch": [torch.Size([2, 3]), torch.device("cuda:1"), torch.bfloat16, torch.strided],
        "containers": [
            OrderedDict([("b", 1), ("a", torch.arange(3))]),
            defaultdict(list, {"x": [1]}),
            Counter("aab"),
            deque([1, torch.arange(2)], maxlen=5),
            Pair(torch.arange(3), "second"),
            Frozen({"a": 1}),
        ],
        "keys": {0: "int", "0": "str", "a/b": 1, "": 2, None: 3, (1, "x"): torch.arange(2), b"k": 4, 1.5: 5, True: 6},
        "empty": {"dict": {}, "list": [], "tuple": ()},
        "long text": "a long text " * 1000,
        "long list": [number * number for number in range(3000)],
    }


def first() -> dict[str, Any]:
    return {"arrays": arrays(), "composites": composites(), "values": values()}


def second() -> dict[str, Any]:
    """The first with a little that is new."""
    state = first()
    state["arrays"]["many chunks"][2999] = 5
    state["values"]["scalars"].append("new")
    return state


def quantised() -> dict[str, Any]:
    """Apart, since torch is to lose these."""
    numbers = torch.arange(24, dtype=torch.float32).view(4, 6)
    scales, zero_points = torch.arange(1, 5, dtype=torch.float64), torch.arange(4)
    return {
        "tensor": torch.quantize_per_tensor(numbers, 0.5, 3, torch.quint8),
        "channel": torch.quantize_per_channel(numbers, scales, zero_points, 0, torch.qint8),
    }


STATES: dict[str, Callable[[], dict[str, Any]]] = {
    "main@1": first,
    "main@2": second,
    "main@3": quantised,
    "side@7": lambda: {"forked": tensor("float32", 400), "step": 7},
}


def trained(step: int, dtype: torch.dtype, seed: int = 1) -> torch.Tensor:
    """10,240 numbers near a tenth, which move little with each step."""
    rough = torch.frombuffer(noise(2 * 10_240, seed), dtype=torch.int16).double() / (1 << 19)
    moved = torch.frombuffer(noise(10_240, seed + step), dtype=torch.int8).double() * step / (1 << 24)
    return (0.1 + rough + moved).to(dtype)


def moving(step: int) -> dict[str, Any]:
    """Numbers of each kind that the codecs of numbers know."""
    kinds = {
        str(dtype): trained(step, dtype) for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)
    }
    counts = {str(dtype): torch.arange(10_240, dtype=dtype) * 7 + step for dtype in (torch.int64, torch.int32)}
    return {"numbers": kinds | counts, "still": tensor("uint8", 20_000), "step": step}


DELTAS = "deltas"
"""The folder of the store whose chunks rest on others."""
MOVING = {"main@1": 1, "main@2": 2, "main@3": 3, "side@7": 4}
METADATA = {"loss": 0.5, "note": "né", "nested": {"list": [1, None, True]}}


def write(place: Path, digest: str) -> None:
    with ckptstore.open(place, digest=digest, chunk_bytes=4096) as store:
        for address, state in STATES.items():
            run, _, step = address.partition("@")
            parent = "main@2" if run == "side" else None
            store.commit(state(), step=int(step), run=run, parent=parent, metadata=METADATA)
        store.tag("best", 1)
    catalog = place / "catalog.sqlite"
    with closing(sqlite3.connect(catalog)) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    if digest != WITH_CATALOG:
        catalog.unlink()


def write_deltas(place: Path) -> None:
    with ckptstore.open(place, chunk_bytes=1 << 15, compression="best") as store:
        for address, step in MOVING.items():
            run, _, number = address.partition("@")
            parent = "main@2" if run == "side" else None
            store.commit(moving(step), step=int(number), run=run, parent=parent, metadata=METADATA)
    (place / "catalog.sqlite").unlink()


def main() -> None:
    """What is there already is golden for ever."""
    folder = HERE / f"format{FORMAT}"
    for digest in DIGESTS:
        if not (folder / digest).exists():
            write(folder / digest, digest)
    if not (folder / DELTAS).exists():
        write_deltas(folder / DELTAS)


if __name__ == "__main__":
    main()
