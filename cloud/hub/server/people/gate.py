"""Who asks, and whether they may: a token in a header, or the login of a page in a cookie.

    POST   /v1/login     {"token": TEXT} -> {"name", "scope"}, and a cookie
    GET    /v1/login     {"name", "scope"}, both "" for whoever is not logged in
    DELETE /v1/login     -> 204; the cookie is good for nothing any more

A browser sends a cookie whoever makes it ask. So it is believed only if the browser says that one of the hub's own
pages asks (Sec-Fetch-Site, https://www.w3.org/TR/fetch-metadata/, which no script can set); a file may also be opened
by its address. The cookie is SameSite=Strict too, HttpOnly, and Secure unless the hub is reached without TLS.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from cloud.hub.database.tokens import Token
from cloud.hub.server.app import Handler, address_of, bearer, body_of, error
from cloud.hub.server.hub import Hub, Refused
from cloud.hub.server.limits import Buckets
from cloud.hub.server.people.logins import LASTS, Logins
from lite_runtime.bundle.strict import parsed
from lite_runtime.errors import BundleError

__all__ = ["Asked", "Gate"]

Asked = Callable[[web.Request, Token], Awaitable[web.StreamResponse]]
_MOST = 1024
_SAFE = ("GET", "HEAD")
_NOBODY = {"name": "", "scope": ""}


class Gate:
    """Lets people in."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._logins = Logins(hub.clock)
        self._tries = Buckets(0.2, 10, time.monotonic)

    def routes(self) -> list[web.RouteDef]:
        """The paths of logging in and out."""
        return [
            web.get("/v1/login", self._who),
            web.post("/v1/login", self._login),
            web.delete("/v1/login", self._logout),
        ]

    def guard(self, *scopes: str) -> Callable[[Asked], Handler]:
        """Handlers that only a person's token with one of these scopes reaches."""

        def guard(handler: Asked) -> Handler:
            async def asked(request: web.Request) -> web.StreamResponse:
                token = await self._person(request)
                if token is None:
                    raise Refused(401, "expected a token: Authorization: Bearer TOKEN; msedge hub token add makes one")
                if token.scope not in scopes:
                    raise Refused(403, f"expected a token with scope {scopes[0]}, got one with {token.scope}")
                return await handler(request, token)

            return asked

        return guard

    async def _person(self, request: web.Request) -> Token | None:
        if words := bearer(request):
            return await self._hub.person(words)
        secret = request.cookies.get(self._cookie(request), "")
        if not secret:
            return None
        _of_own_page(request)
        identity = self._logins.token(secret)
        return await self._hub.logged_in(identity) if identity else None

    async def _who(self, request: web.Request) -> web.StreamResponse:
        token = await self._person(request)
        return web.json_response(_NOBODY if token is None else {"name": token.name, "scope": token.scope})

    async def _login(self, request: web.Request) -> web.StreamResponse:
        _of_own_page(request)
        address = address_of(request, self._hub.settings.proxies)
        if again := self._tries.take(address):
            return error(429, "too many logins from this address", again)
        token = await self._hub.person(_token(await body_of(request, _MOST)))
        if token is None:
            raise Refused(401, "expected a token of an operator or a viewer, got another text, or one that ended")
        await self._hub.noted(token.name, "login", {"address": address})
        answer = web.json_response({"name": token.name, "scope": token.scope})
        answer.set_cookie(
            self._cookie(request), self._logins.begin(token.id), max_age=int(LASTS), path="/",
            secure=self._secure(request), httponly=True, samesite="Strict",
        )  # fmt: skip
        return answer

    async def _logout(self, request: web.Request) -> web.StreamResponse:
        _of_own_page(request)
        name = self._cookie(request)
        self._logins.end(request.cookies.get(name, ""))
        answer = web.Response(status=204)
        answer.del_cookie(name, path="/", secure=self._secure(request), httponly=True, samesite="Strict")
        return answer

    def _secure(self, request: web.Request) -> bool:
        """Whether the browser speaks TLS, with the hub or with a trusted proxy."""
        proxied = request.remote in self._hub.settings.proxies
        return request.secure or (proxied and request.headers.get("X-Forwarded-Proto") == "https")

    def _cookie(self, request: web.Request) -> str:
        """Its name. Browsers take one that begins with __Host- only over TLS, from this host, for all of it."""
        return "__Host-msedge-hub" if self._secure(request) else "msedge-hub"


def _of_own_page(request: web.Request) -> None:
    """Raises Refused for what another site makes a browser ask."""
    site = request.headers.get("Sec-Fetch-Site", "nothing")
    if site != "same-origin" and not (site == "none" and request.method in _SAFE):
        raise Refused(
            403, f"expected a request of the hub's own pages, got Sec-Fetch-Site: {site[:40]}; a browser says so over "
            "https and on the hub's own machine; programs send Authorization: Bearer TOKEN"
        )  # fmt: skip


def _token(raw: bytes) -> str:
    try:
        found = parsed(raw, "the body")
    except BundleError as problem:
        raise Refused(400, str(problem)) from None
    if type(found) is not dict or set(found) != {"token"} or type(found["token"]) is not str:
        raise Refused(400, 'expected {"token": TEXT}')
    return str(found["token"])
