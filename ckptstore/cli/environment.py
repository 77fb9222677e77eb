"""What the environment says of a store's place where no option does, and for which places that can be meant."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from typing import Any

import click

CATALOG = "CKPTSTORE_CATALOG"
STORAGE_OPTIONS = "CKPTSTORE_STORAGE_OPTIONS"

_ADVICE = """give a JSON object, such as '{"client_kwargs": {"endpoint_url": "http://localhost:9000"}}'"""


def is_folder(url: str) -> bool:
    """Whether the place is a folder, and no URL of anything else."""
    from ckptstore.storage.opening import folder_of

    return folder_of(url) is not None


def catalog_for(url: str) -> str | None:
    """The catalog's URL; none for a folder that has its own, which another would soon know less of."""
    from ckptstore.opening import CATALOG_FILE
    from ckptstore.storage.opening import folder_of

    folder = folder_of(url)
    if folder is not None and os.path.exists(folder / CATALOG_FILE):
        return None
    return os.environ.get(CATALOG) or None


def storage_options_for(url: str) -> dict[str, Any] | None:
    """What fsspec needs to reach a URL; none for a folder."""
    text = os.environ.get(STORAGE_OPTIONS)
    if not text or is_folder(url):
        return None
    found = _parsed(text)
    if found is None:
        raise click.BadParameter(_ADVICE, click.get_current_context(silent=True), param_hint=STORAGE_OPTIONS)
    return found


def json_object(context: click.Context, parameter: click.Parameter, text: str | None) -> dict[str, Any] | None:
    """An option's text as what it is in JSON. The text is never shown: there may be secrets in it."""
    if text is None:
        return None
    found = _parsed(text)
    if found is None:
        raise click.BadParameter(_ADVICE, context, parameter)
    return found


def _parsed(text: str) -> dict[str, Any] | None:
    with suppress(ValueError, RecursionError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    return None
