"""Where imports read from."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ckptstore.errors import InvalidArgument

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def local_path(given: str | os.PathLike[str]) -> Path:
    """The local file or folder to import. Raises InvalidArgument for a URL, also for one that was made a Path."""
    text = os.fspath(given)
    found = _URL.match(text)
    if found is None or os.path.lexists(text):
        return Path(text)
    scheme, advice = found[1], "give its path without the scheme"
    if scheme != "file":
        get = f"fsspec.filesystem({scheme!r}).get(url, folder, recursive=True)"
        advice = f"download it first, with the cloud's own tool or {get}"
    raise InvalidArgument(f"{text!r} is a URL, and imports read local files and folders: {advice}")
