"""Web servers as file systems to read from, as fsspec reaches them, with what a store needs put right."""

from __future__ import annotations

from typing import Any

from fsspec.asyn import sync_wrapper
from fsspec.implementations.http import HTTPFileSystem


class WebFileSystem(HTTPFileSystem):  # type: ignore[misc]
    """Cuts a range out of the whole object where the server does not know ranges, and lists only what lies below."""

    async def _cat_file(self, url: str, start: int | None = None, end: int | None = None, **_: object) -> bytes:
        wanted = {"Accept-Encoding": "identity"}
        if start is not None and end is not None:
            wanted["Range"] = f"bytes={start}-{end - 1}"
        options = {**self.kwargs, "headers": {**self.kwargs.get("headers", {}), **wanted}}
        session = await self.set_session()
        async with session.get(self.encode_url(url), **options) as reply:
            self._raise_not_found_for_status(reply, url)
            data: bytes = await reply.read()
        return data if reply.status == 206 else data[start:end]

    async def _ls(self, url: str, detail: bool = True, **_: object) -> list[Any]:  # noqa: FBT001, FBT002
        listed = await super()._ls(url, detail=True)
        below = [info for info in listed if "?" not in info["name"]]  # some offer other orders of the same page
        return below if detail else [info["name"] for info in below]

    ls = sync_wrapper(_ls)
