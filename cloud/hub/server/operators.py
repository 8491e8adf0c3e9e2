"""Requests of people: the fleet, rollouts, the audit log. A viewer's token reads; an operator's changes too.

GET  /v1/fleet                        numbers by state and version, and how the fleet does
GET  /v1/fleet/devices?search=WORDS&after=ID&most=N     devices with their last reports, by id; words: see `searching`
GET  /v1/fleet/devices/ID             one device and its events
POST /v1/fleet/devices/ID             {"state": "active" | "blocked", "labels": {…}}
GET  /v1/rollouts?status=S&most=N     all, the newest first
POST /v1/rollouts                     a plan -> 201
GET  /v1/rollouts/ID                  one rollout and its decisions
GET  /v1/rollouts/ID/progress         how many members it had over time, and their verdicts
POST /v1/rollouts/ID/pause|resume|abort    {"why": TEXT, "back": true}
GET  /v1/telemetry/APPLICATION        what devices told, by version, day and name
GET  /v1/telemetry/APPLICATION/VERSION     sketches and histograms of all days
GET  /v1/audit?after=NUMBER&most=N    the audit log
GET  /v1/audit/latest?search=WORDS&before=NUMBER&most=N   the same backwards, and the last hash
GET  /v1/audit/export                 all of it, an entry a line
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

from aiohttp import web

from cloud.hub.database import audit, devices, rollouts, telemetry
from cloud.hub.database.engine import Cursor
from cloud.hub.database.tokens import Token
from cloud.hub.errors import HubError
from cloud.hub.rollouts.plan import read_plan
from cloud.hub.rollouts.progress import curves
from cloud.hub.server.bodies import parsed_body, table_of
from cloud.hub.server.fleet import read_stored
from cloud.hub.server.hub import Hub, Refused
from cloud.hub.server.pacing import spread
from cloud.hub.server.people.gate import Gate
from cloud.hub.server.people.health import health
from cloud.hub.server.people.searching import search
from cloud.hub.storage import Storage
from lite_runtime.updates import fields

__all__ = ["Operators"]

_PAGE = 1000
_FRESH, _CURVES = 1.5, 4.0
"""Seconds for which numbers of the whole fleet, and curves of a rollout, are good: many pages may ask for them."""
_MOST_CURVES = 64
_ORDERS = {"pause": "paused", "resume": "resumed", "abort": "aborted"}


class Operators:
    """What people ask of a hub. storage: where a release has to be before it is rolled out; None: not checked."""

    def __init__(self, hub: Hub, storage: Storage | None, gate: Gate) -> None:
        self._hub, self._storage, self._gate = hub, storage, gate
        self._numbers: tuple[float, dict[str, Any]] = (0.0, {})
        self._curves: dict[str, tuple[float, dict[str, Any]]] = {}

    def routes(self) -> list[web.RouteDef]:
        """The paths that people ask for."""
        read, write = self._gate.guard("viewer", "operator"), self._gate.guard("operator")
        return [
            web.get("/v1/fleet", read(self._fleet)),
            web.get("/v1/fleet/devices", read(self._devices)),
            web.get("/v1/fleet/devices/{id}", read(self._device)),
            web.post("/v1/fleet/devices/{id}", write(self._change)),
            web.get("/v1/rollouts", read(self._rollouts)),
            web.post("/v1/rollouts", write(self._start)),
            web.get("/v1/rollouts/{id}", read(self._rollout)),
            web.get("/v1/rollouts/{id}/progress", read(self._progress)),
            web.post("/v1/rollouts/{id}/{order}", write(self._order)),
            web.get("/v1/telemetry/{application}", read(self._telemetry)),
            web.get("/v1/telemetry/{application}/{version}", read(self._sums)),
            web.get("/v1/audit", read(self._audit)),
            web.get("/v1/audit/latest", read(self._latest)),
            web.get("/v1/audit/export", read(self._export)),
        ]

    # -- the fleet

    async def _fleet(self, request: web.Request, token: Token) -> web.StreamResponse:
        now, fleet = self._hub.clock(), self._hub.fleet
        if not 0 <= now - self._numbers[0] < _FRESH:
            found = await asyncio.to_thread(health, list(fleet.devices.values()), now, self._interval)
            self._numbers = now, {**fleet.summary(), "health": found}
        return web.json_response(self._numbers[1])

    @property
    def _interval(self) -> float:
        """Seconds between two check-ins of a device."""
        settings = self._hub.settings
        return spread(settings.interval, len(self._hub.fleet.devices), settings.capacity)

    async def _devices(self, request: web.Request, token: Token) -> web.StreamResponse:
        words, after, most = _words(request, "search"), _words(request, "after"), _number(request, "most", 100, _PAGE)
        fleet, now, interval = self._hub.fleet, self._hub.clock(), self._interval
        all_ = list(fleet.devices.values())
        found = await asyncio.to_thread(search, all_, fleet.rollouts, words, after, most, now, interval)
        shown = await self._hub.read(lambda cursor: [_shown(one) for one in devices.some(cursor, found.ids)])
        return web.json_response({"devices": shown, "total": found.total, "more": found.more})

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
        table = await table_of(request, "state", "labels")
        if "state" in table and table["state"] not in ("active", "blocked"):
            raise Refused(400, f"state: expected active or blocked, got {table['state']!r:.40}")
        if "labels" in table:
            table["labels"] = dict(fields.table(fields.text(256), 64)(table["labels"], "labels"))
        if table:
            await self._hub.change(request.match_info["id"], token.name, **table)
        return await self._device(request, token)

    # -- rollouts

    async def _rollouts(self, request: web.Request, token: Token) -> web.StreamResponse:
        status, most = _words(request, "status"), _number(request, "most", _PAGE, _PAGE)
        found = [one for one in self._hub.fleet.rollouts.values() if not status or one.status == status]
        found.sort(key=lambda one: -one.started)
        return web.json_response({"rollouts": [one.data() for one in found[:most]], "total": len(found)})

    async def _start(self, request: web.Request, token: Token) -> web.StreamResponse:
        plan = read_plan(await parsed_body(request), "plan")
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

    async def _progress(self, request: web.Request, token: Token) -> web.StreamResponse:
        found, now = self._hub.fleet.find(request.match_info["id"]), self._hub.clock()

        def look(cursor: Cursor) -> dict[str, Any]:
            events = list(rollouts.verdicts(cursor, found.id))
            ended = max(found.began, events[-1][0]) if events else found.began
            end = now if found.status in ("running", "paused") else ended
            return curves(events, found.started, end)._asdict()

        when, shown = self._curves.pop(found.id, (0.0, {}))
        if not 0 <= now - when < _CURVES:
            when, shown = now, await self._hub.read(look)
        self._curves[found.id] = when, shown
        if len(self._curves) > _MOST_CURVES:
            del self._curves[next(iter(self._curves))]
        return web.json_response(shown)

    async def _order(self, request: web.Request, token: Token) -> web.StreamResponse:
        order = request.match_info["order"]
        if order not in _ORDERS:
            raise Refused(404, f"expected {', '.join(_ORDERS)}, got {order!r:.40}")
        table = await table_of(request, "why", "back")
        why, back = fields.text(500)(table.get("why", ""), "why"), fields.flag(table.get("back", True), "back")
        data: dict[str, Any] = {"back": back} if order == "abort" else {}
        found = await self._hub.order(request.match_info["id"], _ORDERS[order], token.name, why, data)
        return web.json_response(found.data())

    # -- telemetry, the audit log

    async def _telemetry(self, request: web.Request, token: Token) -> web.StreamResponse:
        application, since = request.match_info["application"], _number(request, "since", 0, 1 << 31)
        found = await self._hub.read(lambda cursor: telemetry.summaries(cursor, application, since))
        return web.json_response({"telemetry": [one._asdict() for one in found]})

    async def _sums(self, request: web.Request, token: Token) -> web.StreamResponse:
        application, version = (request.match_info[name] for name in ("application", "version"))
        return web.json_response(await self._hub.read(lambda cursor: telemetry.sums(cursor, application, version)))

    async def _audit(self, request: web.Request, token: Token) -> web.StreamResponse:
        after, most = _number(request, "after", 0, 1 << 53), _number(request, "most", 1000, 10_000)
        found = await self._hub.read(lambda cursor: audit.entries(cursor, after, most))
        return web.json_response({"entries": [one._asdict() for one in found]})

    async def _latest(self, request: web.Request, token: Token) -> web.StreamResponse:
        words, most = _words(request, "search"), _number(request, "most", 100, _PAGE)
        before = _number(request, "before", 1 << 53, 1 << 53)

        def look(cursor: Cursor) -> tuple[list[audit.Entry], tuple[int, str]]:
            return audit.latest(cursor, words, before, most + 1), audit.head(cursor)

        found, (number, chain) = await self._hub.read(look)
        shown = [one._asdict() for one in found[:most]]
        return web.json_response({"entries": shown, "more": len(found) > most, "number": number, "head": chain})

    async def _export(self, request: web.Request, token: Token) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Disposition": 'attachment; filename="audit.jsonl"'})
        answer.content_type = "application/jsonl"
        await answer.prepare(request)
        last = 0
        try:
            while found := await self._hub.read(self._part(last)):
                await answer.write("".join(map(audit.line, found)).encode())
                last = found[-1].number
            await answer.write_eof()
        except HubError:
            if request.transport is not None:
                request.transport.abort()  # a log that is cut short must not look whole
        return answer

    @staticmethod
    def _part(after: int) -> Callable[[Cursor], list[audit.Entry]]:
        return lambda cursor: audit.entries(cursor, after, _PAGE)


def _number(request: web.Request, name: str, default: int, most: int) -> int:
    words = request.query.get(name, str(default))
    if not words.isascii() or not words.isdigit() or len(words) > 16:
        raise Refused(400, f"{name}: expected a whole number, got {words[:40]!r}")
    return min(int(words), most)


def _words(request: web.Request, name: str) -> str:
    words: str = fields.text(200)(request.query.get(name, ""), name)
    return words.strip()


def _shown(device: devices.Device) -> dict[str, Any]:
    """A device for people, with its last report."""
    report = fields.plain(read_stored(device.report))
    left_out = ("batch", "received", "report")
    rest = {name: value for name, value in device._asdict().items() if name not in left_out}
    return {**json.loads(json.dumps(rest)), "report": report}
