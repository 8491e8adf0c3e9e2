"""The repository's files over HTTP: whole or by range, from a folder by the system's sendfile, else in parts.

Names lead nowhere else: three folders, and parts that begin with a letter or digit. Pieces and targets never change
under their names; metadata do, so that nobody on the way may keep them.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterator
from pathlib import Path

from aiohttp import web

from cloud.hub.errors import HubError
from cloud.hub.server.app import Devices
from cloud.hub.storage import Storage

__all__ = ["Files"]

LOG = logging.getLogger("msedge.hub")
_NAME = re.compile(r"(metadata|targets|pieces)(/[A-Za-z0-9_-][A-Za-z0-9._-]*){1,8}")
_RANGE = re.compile(r"bytes=(\d{1,15})-(\d{0,15})")
_KEPT = {"metadata": "no-cache"}
_FOREVER = "private, max-age=31536000, immutable"


class Files:
    """The files of a storage, for devices with a session."""

    def __init__(self, devices: Devices, storage: Storage) -> None:
        self._devices, self._storage = devices, storage

    def routes(self) -> list[web.RouteDef]:
        """The paths of files."""
        return [web.get("/repository/{name:.+}", self._get, allow_head=True)]

    async def _get(self, request: web.Request) -> web.StreamResponse:
        self._devices.files(request)
        name = request.match_info["name"]
        if not _NAME.fullmatch(name) or ".." in name:
            raise web.HTTPNotFound
        headers = {
            "Cache-Control": _KEPT.get(name.partition("/")[0], _FOREVER),
            "Content-Type": "application/octet-stream",
        }
        folder = getattr(self._storage, "folder", None)
        if isinstance(folder, Path):
            path = folder / name
            if not await asyncio.to_thread(path.is_file):
                raise web.HTTPNotFound
            return web.FileResponse(path, headers=headers)
        return await self._streamed(request, name, headers)

    async def _streamed(self, request: web.Request, name: str, headers: dict[str, str]) -> web.StreamResponse:
        size = await asyncio.to_thread(self._storage.size, name)
        if size is None:
            raise web.HTTPNotFound
        asked = request.headers.get("Range", "")
        match = _RANGE.fullmatch(asked)
        start, end = 0, size
        if match is not None:
            start, end = int(match[1]), min(int(match[2] or size - 1) + 1, size)
            if start >= end:
                raise web.HTTPRequestRangeNotSatisfiable(headers={"Content-Range": f"bytes */{size}"})
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        response = web.StreamResponse(
            status=200 if match is None else 206, headers={**headers, "Accept-Ranges": "bytes"}
        )
        response.content_length = left = end - start
        await response.prepare(request)
        if request.method == "HEAD":
            return response
        parts = self._storage.open(name, start)
        while left:
            try:
                part = await asyncio.to_thread(_next, parts)
            except HubError as problem:
                LOG.error("%s: %s", name, problem)
                part = b""
            if not part:  # its length was said: another answer would be taken for the rest
                if request.transport is not None:
                    request.transport.abort()
                return response
            await response.write(part[:left])
            left -= min(len(part), left)
        await response.write_eof()
        return response


def _next(parts: Iterator[bytes]) -> bytes:
    return next(parts, b"")
