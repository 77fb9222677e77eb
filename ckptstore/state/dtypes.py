"""Names of dtypes, torch's and numpy's."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import torch

from ckptstore.errors import UnknownType
from ckptstore.format.codecs import Form
from ckptstore.format.forms import named_form

T = TypeVar("T")

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


def torch_dtype(path: str, name: str) -> torch.dtype:
    """The torch dtype of the name that a path has. Raises UnknownType when this version of torch has none."""
    return _known(path, f"torch {torch.__version__}", name, known_torch_dtype(name))


def numpy_dtype(path: str, name: str) -> np.dtype[Any]:
    """The numpy dtype of the name that a path has. Raises UnknownType when this version of numpy has none."""
    return _known(path, f"numpy {np.__version__}", name, known_numpy_dtype(name))


def known_torch_dtype(name: str) -> torch.dtype | None:
    """The torch dtype of a name, if this version of torch has it."""
    return _TORCH_DTYPES.get(name)


@lru_cache(1024)
def known_numpy_dtype(name: str) -> np.dtype[Any] | None:
    """The numpy dtype of a name, if this version of numpy has it; none that holds Python objects."""
    try:
        dtype = _from_plain(json.loads(name) if name[:1] in "[{" else name)
    except (TypeError, ValueError, KeyError, SyntaxError, RecursionError):
        return None
    return None if dtype.hasobject else dtype


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
    again = known_numpy_dtype(name)
    return name if again is not None and again == dtype and again.type is dtype.type else None


def _known(path: str, library: str, name: str, found: T | None) -> T:
    if found is None:
        raise UnknownType(f"{path!r}: {library} has no dtype {name!r}: use a newer one")
    return found


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
