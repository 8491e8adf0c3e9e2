"""What the bodies of people's requests say."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from cloud.hub.server.app import body_of
from cloud.hub.server.hub import Refused
from lite_runtime.bundle.strict import parsed
from lite_runtime.errors import BundleError

__all__ = ["parsed_body", "table_of"]

_MOST = 1 << 18


async def parsed_body(request: web.Request) -> Any:
    """What the JSON of a body says; an empty one is {}. Raises Refused."""
    try:
        return parsed(await body_of(request, _MOST) or b"{}", "the body")
    except BundleError as problem:
        raise Refused(400, str(problem)) from None


async def table_of(request: web.Request, *keys: str) -> dict[str, Any]:
    """The body, an object with some of these keys. Raises Refused."""
    found = await parsed_body(request)
    if type(found) is not dict or not found.keys() <= set(keys):
        raise Refused(400, f"expected an object with {', '.join(keys)}")
    return found
