"""What `torch.save` wrote, loaded without running code unless that is allowed: beside what torch itself allows with
`weights_only=True`, numpy's arrays and the standard library's plain values are let in.
"""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta, timezone
from functools import cache
from pathlib import PosixPath, PurePosixPath, PureWindowsPath, WindowsPath
from typing import IO, Any

from ckptstore.errors import FormatError
from ckptstore.locks import Lock

_REFUSED_TYPE = re.compile(
    r"GLOBAL (\S+) (?:was not an allowed global|whose module)|`add_safe_globals`,? but got <class '([^']+)'>"
)
_ALLOWING = Lock()
"""What torch allows, it allows to all threads: the first to leave would take it from the others."""


def load_saved(opened: IO[bytes], source: str, *, device: str = "cpu", allow_pickle: bool = False) -> Any:
    """What a file of `torch.save` holds, with tensors on `device`; `source` names it in errors.

    Raises FormatError for what is no such file, and for objects that need `allow_pickle`.
    """
    import torch

    try:
        with plain_values_allowed():
            return torch.load(opened, map_location=device, weights_only=not allow_pickle)
    except Exception as error:  # whatever the bytes of a foreign file make its reader raise
        refused = refused_type(error)
        if refused:
            advice = "allow pickles if you trust it (--allow-pickle)"
            why = f"holds a {refused}, whose unpickling can run any code: {advice}"
        elif allow_pickle and isinstance(error, ImportError | AttributeError):
            why = f"holds objects whose classes are not found here: {error}: put their modules on PYTHONPATH"
        elif "TorchScript" in str(error):
            why = "is an archive of TorchScript: load it with torch.jit.load, and torch.save its state_dict()"
        else:
            why = f"is no whole file of torch.save ({type(error).__name__}){_other_import(source)}"
        raise FormatError(f"{source} {why}") from error


def _other_import(source: str) -> str:
    """What to do about a file whose name is that of another format."""
    return ": use import_safetensors (--format safetensors)" if source.endswith(".safetensors") else ""


def refused_type(error: Exception) -> str | None:
    """What the loading of a pickle ended at, as it may run any code, if that is the error."""
    found = _REFUSED_TYPE.search(str(error))
    return found[1] or found[2] if found else None


@contextmanager
def plain_values_allowed() -> Iterator[None]:
    """Let `torch.load(…, weights_only=True)` load them. What the process has allowed itself stays so."""
    import torch

    with _ALLOWING:
        known = set(torch.serialization.get_safe_globals())
        with torch.serialization.safe_globals([each for each in _plain_classes() if each not in known]):
            yield


@cache
def _plain_classes() -> list[Any]:
    """What pickled plain values name. None of it does more than hold what it is given."""
    import numpy as np

    makers = [np.ones(1).__reduce__()[0], np.float64(1).__reduce__()[0], codecs.encode]
    dtypes = {type(np.dtype(code)) for code in np.typecodes["All"] if code != "O"}
    paths = (PosixPath, PurePosixPath, PureWindowsPath, WindowsPath)
    times = (date, datetime, time, timedelta, timezone)
    plain = (frozenset, range, slice, bytes, io.BytesIO)  # bytes stands there for empty ones, as of empty arrays
    return [*makers, np.ndarray, np.dtype, *dtypes, *paths, *times, *plain]
