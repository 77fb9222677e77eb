"""Pickles of values that have no typed encoding."""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch


def pickle_of(value: object) -> bytes:
    """The value as a pickle, which `pickle.loads` reads."""
    written = io.BytesIO()
    _Pickler(written, protocol=5).dump(value)
    return written.getvalue()


class _Pickler(pickle.Pickler):
    """Writes the memory of tensors as `torch.save` does.

    torch's own way is its older format, in which it writes all dtypes, but reads none of the newer ones.
    """

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is not torch.UntypedStorage:
            return NotImplemented
        saved = io.BytesIO()
        torch.save(obj, saved)
        return torch.storage._load_from_bytes, (saved.getvalue(),)  # noqa: SLF001 - what torch itself puts into pickles
