"""Names of dtypes, torch's and numpy's."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from ckptstore.errors import UnknownType
from ckptstore.format.codecs import Form
from ckptstore.format.forms import named_form

_TORCH_NAMES = {
    found: str(found).removeprefix("torch.") for found in vars(torch).values() if type(found) is torch.dtype
}
_TORCH_DTYPES = {name: dtype for dtype, name in _TORCH_NAMES.items()}


def dtype_name(dtype: torch.dtype | np.dtype[Any]) -> str:
    """`bfloat16` for torch's; for numpy's its `str`, or JSON when it is structured. Raises TypeError for objects."""
    if isinstance(dtype, torch.dtype):
        return _TORCH_NAMES[dtype]
    name = _numpy_name(dtype)
    if name is None:
        raise TypeError(f"numpy dtype {dtype!r} has no exact name")
    return name


def torch_dtype(name: str) -> torch.dtype:
    """The torch dtype of a name. Raises UnknownType when this version of torch has none."""
    try:
        return _TORCH_DTYPES[name]
    except KeyError:
        raise UnknownType(f"torch {torch.__version__} has no dtype {name!r}: use a newer one") from None


@lru_cache(1024)
def numpy_dtype(name: str) -> np.dtype[Any]:
    """The numpy dtype of a name. Raises UnknownType when this version of numpy has none."""
    try:
        dtype = _from_plain(json.loads(name) if name[:1] in "[{" else name)
    except (TypeError, ValueError, KeyError, SyntaxError) as error:
        raise UnknownType(f"numpy {np.__version__} has no dtype {name!r}: {error}") from None
    if dtype.hasobject:
        raise UnknownType(f"numpy dtype {name!r} holds Python objects")
    return dtype


@lru_cache(1024)
def number_form(dtype: torch.dtype | np.dtype[Any]) -> Form:
    """What an array's bytes are, for codecs."""
    return named_form("torch" if isinstance(dtype, torch.dtype) else "numpy", dtype_name(dtype), dtype.itemsize)


@lru_cache(1024)
def _numpy_name(dtype: np.dtype[Any]) -> str | None:
    if dtype.hasobject or dtype.type is np.record:
        return None
    plain = _as_plain(dtype)
    name = plain if isinstance(plain, str) else json.dumps(plain, separators=(",", ":"))
    try:
        again = numpy_dtype(name)
    except UnknownType:
        return None
    return name if again == dtype and again.type is dtype.type else None


def _as_plain(dtype: np.dtype[Any]) -> Any:
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return [_as_plain(base), list(shape)]
    if dtype.fields is None:
        return dtype.str
    parts = [dtype.fields[name] for name in dtype.names or ()]
    plain: dict[str, Any] = {
        "names": list(dtype.names or ()),
        "formats": [_as_plain(part[0]) for part in parts],
        "offsets": [part[1] for part in parts],
        "itemsize": dtype.itemsize,
    }
    return plain | ({"aligned": True} if dtype.isalignedstruct else {})


def _from_plain(plain: Any) -> np.dtype[Any]:
    if isinstance(plain, list):
        base, shape = plain
        return np.dtype((_from_plain(base), tuple(shape)))
    if isinstance(plain, dict):
        plain = {**plain, "formats": [_from_plain(part) for part in plain["formats"]]}
    made: np.dtype[Any] = np.dtype(plain)
    return made
