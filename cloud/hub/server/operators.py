"""Requests of people: the fleet, rollouts, the audit log. A viewer's token reads; an operator's changes too.

GET  /v1/fleet                        numbers by state and version
GET  /v1/fleet/devices?after=ID&most=N     devices with their last reports
GET  /v1/fleet/devices/ID             one device and its events
POST /v1/fleet/devices/ID             {"state": "active" | "blocked", "labels": {…}}
GET  /v1/rollouts                     all, the newest first
POST /v1/rollouts                     a plan -> 201
GET  /v1/rollouts/ID                  one rollout and its decisions
POST /v1/rollouts/ID/pause|resume|abort    {"why": TEXT, "back": true}
GET  /v1/audit?after=NUMBER&most=N    the audit log
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from cloud.hub.database import audit, devices, rollouts, telemetry
from cloud.hub.database.tokens import Token
from cloud.hub.errors import HubError
from cloud.hub.rollouts.plan import read_plan
from cloud.hub.server.app import Handler, bearer, body_of
from cloud.hub.server.fleet import read_stored
from cloud.hub.server.hub import Hub, Refused
from cloud.hub.storage import Storage
from lite_runtime.bundle.strict import parsed
from lite_runtime.errors import BundleError
from lite_runtime.updates import fields

__all__ = ["Operators"]

_MOST = 1 << 18
_PAGE = 1000
_ORDERS = {"pause": "paused", "resume": "resumed", "abort": "aborted"}
Asked = Callable[[web.Request, Token], Awaitable[web.StreamResponse]]


class Operators:
    """What people ask of a hub. storage: where a release has to be before it is rolled out; None: not checked."""

    def __init__(self, hub: Hub, storage: Storage | None) -> None:
        self._hub, self._storage = hub, storage

    def routes(self) -> list[web.RouteDef]:
        """The paths that people ask for."""
        read, write = self._for("viewer", "operator"), self._for("operator")
        return [
            web.get("/v1/fleet", read(self._fleet)),
            web.get("/v1/fleet/devices", read(self._devices)),
            web.get("/v1/fleet/devices/{id}", read(self._device)),
            web.post("/v1/fleet/devices/{id}", write(self._change)),
            web.get("/v1/rollouts", read(self._rollouts)),
            web.post("/v1/rollouts", write(self._start)),
            web.get("/v1/rollouts/{id}", read(self._rollout)),
            web.post("/v1/rollouts/{id}/{order}", write(self._order)),
            web.get("/v1/telemetry/{application}", read(self._telemetry)),
            web.get("/v1/audit", read(self._audit)),
        ]

    def _for(self, *scopes: str) -> Callable[[Asked], Handler]:
        def guard(handler: Asked) -> Handler:
            async def asked(request: web.Request) -> web.StreamResponse:
                token = await self._hub.person(bearer(request))
                if token is None:
                    raise Refused(401, "expected a token: Authorization: Bearer TOKEN; msedge hub token add makes one")
                if token.scope not in scopes:
                    raise Refused(403, f"expected a token with scope {scopes[0]}, got one with {token.scope}")
                return await handler(request, token)

            return asked

        return guard

    async def _fleet(self, request: web.Request, token: Token) -> web.StreamResponse:
        return web.json_response(self._hub.fleet.summary())

    async def _devices(self, request: web.Request, token: Token) -> web.StreamResponse:
        after, most = request.query.get("after", ""), _number(request, "most", 100, _PAGE)
        found = await self._hub.read(lambda cursor: devices.page(cursor, after, most))
        return web.json_response({"devices": [_shown(device) for device in found]})

    async def _device(self, request: web.Request, token: Token) -> web.StreamResponse:
        identity = request.match_info["id"]
        known = self._hub.fleet.devices.get(identity)
        if known is None:
            raise Refused(404, f"expected the id of a device, got {identity!r:.80}")
        found = await self._hub.read(lambda cursor: devices.by_key(cursor, known.key))
        events = await self._hub.read(lambda cursor: devices.events(cursor, identity))
        said = {one.id: member.kind or "open" for one in self._hub.fleet.rollouts.values()
                if (member := one.members.get(identity)) is not None}  # fmt: skip
        shown = _shown(found) if found is not None else {}
        return web.json_response({**shown, "events": fields.plain(tuple(events)), "rollouts": said})

    async def _change(self, request: web.Request, token: Token) -> web.StreamResponse:
        table = await _table(request, "state", "labels")
        if "state" in table and table["state"] not in ("active", "blocked"):
            raise Refused(400, f"state: expected active or blocked, got {table['state']!r:.40}")
        if "labels" in table:
            table["labels"] = dict(fields.table(fields.text(256), 64)(table["labels"], "labels"))
        if table:
            await self._hub.change(request.match_info["id"], token.name, **table)
        return await self._device(request, token)

    async def _rollouts(self, request: web.Request, token: Token) -> web.StreamResponse:
        found = sorted(self._hub.fleet.rollouts.values(), key=lambda one: -one.started)
        return web.json_response({"rollouts": [one.data() for one in found]})

    async def _start(self, request: web.Request, token: Token) -> web.StreamResponse:
        plan = read_plan(_json(await body_of(request, _MOST)), "plan")
        if self._storage is not None:
            prefix = f"targets/{plan.application}/{plan.version}/"
            storage = self._storage
            if not await asyncio.to_thread(lambda: next(storage.names(prefix), "")):  # S3 may take its time
                raise HubError(f"{plan.application} {plan.version}: expected a release in the repository, got none; "
                               "msedge hub add makes it")  # fmt: skip
        return web.json_response((await self._hub.start(plan, token.name)).data(), status=201)

    async def _rollout(self, request: web.Request, token: Token) -> web.StreamResponse:
        found = self._hub.fleet.find(request.match_info["id"])
        events = await self._hub.read(lambda cursor: rollouts.decisions(cursor, found.id))
        said = [event._asdict() | {"data": dict(event.data)} for event in events]
        return web.json_response({**found.data(), "decisions": said})

    async def _order(self, request: web.Request, token: Token) -> web.StreamResponse:
        order = request.match_info["order"]
        if order not in _ORDERS:
            raise Refused(404, f"expected {', '.join(_ORDERS)}, got {order!r:.40}")
        table = await _table(request, "why", "back")
        why, back = fields.text(500)(table.get("why", ""), "why"), fields.flag(table.get("back", True), "back")
        data: dict[str, Any] = {"back": back} if order == "abort" else {}
        found = await self._hub.order(request.match_info["id"], _ORDERS[order], token.name, why, data)
        return web.json_response(found.data())

    async def _telemetry(self, request: web.Request, token: Token) -> web.StreamResponse:
        application, since = request.match_info["application"], _number(request, "since", 0, 1 << 31)
        found = await self._hub.read(lambda cursor: telemetry.summaries(cursor, application, since))
        return web.json_response({"telemetry": [one._asdict() for one in found]})

    async def _audit(self, request: web.Request, token: Token) -> web.StreamResponse:
        after, most = _number(request, "after", 0, 1 << 53), _number(request, "most", 1000, 10_000)
        found = await self._hub.read(lambda cursor: audit.entries(cursor, after, most))
        return web.json_response({"entries": [one._asdict() for one in found]})


def _number(request: web.Request, name: str, default: int, most: int) -> int:
    words = request.query.get(name, str(default))
    if not words.isascii() or not words.isdigit() or len(words) > 16:
        raise Refused(400, f"{name}: expected a whole number, got {words[:40]!r}")
    return min(int(words), most)


def _json(raw: bytes) -> Any:
    try:
        return parsed(raw or b"{}", "the body")
    except BundleError as problem:
        raise Refused(400, str(problem)) from None


async def _table(request: web.Request, *keys: str) -> dict[str, Any]:
    """The body, an object with some of these keys."""
    found = _json(await body_of(request, _MOST))
    if type(found) is not dict or not found.keys() <= set(keys):
        raise Refused(400, f"expected an object with {', '.join(keys)}")
    return found


def _shown(device: devices.Device) -> dict[str, Any]:
    """A device for people, with its last report."""
    report = fields.plain(read_stored(device.report))
    left_out = ("batch", "received", "report")
    rest = {name: value for name, value in device._asdict().items() if name not in left_out}
    return {**json.loads(json.dumps(rest)), "report": report}
