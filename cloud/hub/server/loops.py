"""Loops over HTTP: the hub keeps their events, so that people can follow them and decide.

    GET  /v1/loops                all loops
    GET  /v1/loops/NAME?after=N   one loop, and its events after that number
    POST /v1/loops/NAME/events    {"number", "kind", "step", "text", "data"}: what the loop's program did
    POST /v1/loops/NAME/approve   {"step", "why"}: let the step begin that waits
    POST /v1/loops/NAME/reject    {"step", "why"}: end the cycle instead

Approvals are for people; the loop's own program has a token of the same scope, and its name is in the audit log.
"""

from __future__ import annotations

from typing import Any

from aiohttp import web

from cloud.hub.database import audit, loops
from cloud.hub.database.engine import Cursor
from cloud.hub.database.tokens import Token
from cloud.hub.errors import HubError
from cloud.hub.loop.cycle import Cycle, Event
from cloud.hub.server.app import Only
from cloud.hub.server.bodies import table_of
from cloud.hub.server.hub import Hub, Refused
from lite_runtime.updates import fields
from lite_runtime.updates.release import may_name

__all__ = ["Loops"]

_BY_PEOPLE = {"approve": "approved", "reject": "rejected"}
_OWN = ("began", "done", "troubled", "failed")
_MOST_TEXT, _MOST_EVENTS = 2000, 1000


class Loops:
    """What is asked of a hub about its loops."""

    def __init__(self, hub: Hub, only: Only) -> None:
        self._hub, self._only = hub, only

    def routes(self) -> list[web.RouteDef]:
        """The paths."""
        read, write = self._only("viewer", "operator"), self._only("operator")
        return [
            web.get("/v1/loops", read(self._listed)),
            web.get("/v1/loops/{loop}", read(self._shown)),
            web.post("/v1/loops/{loop}/events", write(self._event)),
            web.post("/v1/loops/{loop}/{decision}", write(self._decided)),
        ]

    async def _listed(self, request: web.Request, token: Token) -> web.StreamResponse:
        def call(cursor: Cursor) -> list[dict[str, Any]]:
            return [{"name": name, **loops.load(cursor, name).data()} for name in loops.names(cursor)]

        return web.json_response({"loops": await self._hub.read(call)})

    async def _shown(self, request: web.Request, token: Token) -> web.StreamResponse:
        name, words = request.match_info["loop"], request.query.get("after", "0")
        if not words.isascii() or not words.isdigit() or len(words) > 16:
            raise Refused(400, f"after: expected a whole number, got {words[:40]!r}")

        def call(cursor: Cursor) -> tuple[Cycle, list[tuple[int, Event]]]:
            return loops.load(cursor, name), loops.events(cursor, name, int(words), _MOST_EVENTS)

        found, events = await self._hub.read(call)
        said = [{"number": number, **event._asdict(), "data": dict(event.data)} for number, event in events]
        return web.json_response({"name": name, **found.data(), "log": said})

    async def _event(self, request: web.Request, token: Token) -> web.StreamResponse:
        table = await table_of(request, "number", "kind", "step", "text", "data")
        kind, step, text = (fields.text(_MOST_TEXT)(table.get(key, ""), key) for key in ("kind", "step", "text"))
        if kind not in _OWN:
            raise Refused(400, f"kind: expected one of {', '.join(_OWN)}, got {kind!r:.40}")
        data = table.get("data", {})
        if type(data) is not dict:
            raise Refused(400, "data: expected an object")
        number = fields.whole(1, 1 << 53)(table.get("number"), "number")
        return await self._stored(request, token, number, Event(kind, self._hub.clock(), step, token.name, text, data))

    async def _decided(self, request: web.Request, token: Token) -> web.StreamResponse:
        decision = request.match_info["decision"]
        if decision not in _BY_PEOPLE:
            raise Refused(404, f"expected {', '.join(_BY_PEOPLE)}, got {decision!r:.40}")
        table = await table_of(request, "step", "why")
        step, why = (fields.text(_MOST_TEXT)(table.get(key, ""), key) for key in ("step", "why"))
        event = Event(_BY_PEOPLE[decision], self._hub.clock(), step, token.name, why)
        return await self._stored(request, token, None, event)

    async def _stored(
        self, request: web.Request, token: Token, number: int | None, event: Event
    ) -> web.StreamResponse:  # fmt: skip
        """number: None: whatever comes next."""
        name = request.match_info["loop"]
        if not may_name(name):
            raise Refused(400, f"expected a loop's name of a-z 0-9 . _ -, got {name!r:.80}")

        def call(cursor: Cursor) -> Cycle:
            at = loops.load(cursor, name).events + 1 if number is None else number
            found = loops.add(cursor, name, at, event)
            said = {"loop": name, "cycle": found.number, "step": event.step, "why": event.text}
            audit.add(cursor, event.time, event.by, f"loop {event.kind}", said)
            return found

        if number is None and name not in await self._hub.read(loops.names):
            raise HubError(f"expected the name of a loop, got {name!r}; msedge hub loop status shows all")
        return web.json_response({"name": name, **(await self._hub.run(call)).data()})
