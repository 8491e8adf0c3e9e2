"""The pages' files over HTTP. They hold nothing of the fleet, and need no login: what they show, they ask for."""

from __future__ import annotations

from aiohttp import web

from cloud.hub.pages import Page, pages

__all__ = ["routes"]


def routes() -> list[web.RouteDef]:
    """The paths: the document, and what it loads."""
    return [web.get("/", _document), web.get("/pages/{name}", _file)]


async def _document(request: web.Request) -> web.StreamResponse:
    return _answer(request, pages()[""])


async def _file(request: web.Request) -> web.StreamResponse:
    found = pages().get(request.match_info["name"])
    if found is None:
        raise web.HTTPNotFound
    return _answer(request, found)


def _answer(request: web.Request, page: Page) -> web.StreamResponse:
    """The file, or word that the browser has it."""
    if request.headers.get("If-None-Match") == page.headers["ETag"]:
        return web.Response(status=304, headers=page.headers)
    return web.Response(body=page.body, headers=page.headers)
