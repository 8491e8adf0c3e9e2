"""Federated tasks over HTTP: devices offer themselves and work, a run's server sends messages and takes replies.

Devices, with the token of their session:

    POST /v1/tasks               Offer -> 200 Answer: a task, or when to come back
    …    /v1/tasks/ID/…          the paths of `federated.transport.checkin`; 410: the task is over, offer again later

Whoever has an operator's token:

    GET    /v1/tasks             all tasks
    PUT    /v1/tasks/ID          a task -> 200; again: it goes on, and its lease begins anew
    GET    /v1/tasks/ID          the task, its devices and what they have
    DELETE /v1/tasks/ID          it is over -> 204
    POST   /v1/tasks/ID/messages?nodes=N,N   a message for these nodes -> {"tickets": {TICKET: NODE}}
    GET    /v1/tasks/ID/replies?wait=SECONDS one reply, Msedge-Ticket in its header; 204: none in that time
    DELETE /v1/tasks/ID/replies/TICKET       it was taken -> 204

Tasks are in memory: a run's server has its own checkpoint, and puts its task again where a hub has lost it; devices
offer themselves again. The hub carries bytes, and does not look into them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from cloud.hub.database.tokens import Token
from cloud.hub.server.app import Devices, Only, answered, body_of
from cloud.hub.server.bodies import parsed_body
from cloud.hub.server.hub import Hub, Refused
from cloud.hub.server.pacing import again, spread
from cloud.hub.tasks.task import Task, choose, read_task
from federated.server.replies import Failure
from federated.transport.checkin.desk import node_of
from federated.transport.checkin.window import PATHS, WAIT, Asked, Window
from lite_runtime.updates import joining
from lite_runtime.updates.joining import Answer, Member

__all__ = ["Tasks"]

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_MOST_TASKS = 1000
_UPLOAD = 600.0
"""Seconds in which a device's reply has to arrive."""
_SWEEP = 1.0


class _Open:
    """A task that goes on. members: devices that joined, and what they have. replies: that its server has not taken."""

    def __init__(self, task: Task, now: float) -> None:
        self.task, self.heard = task, now
        self.window = Window(task.heartbeat, task.most)
        self.window.begin()
        self.members: dict[str, Member] = {}
        self.nodes: dict[int, str] = {}
        self.tickets: set[str] = set()
        self.replies: dict[str, bytes | Failure] = {}

    def collect(self) -> None:
        """Take the replies that have arrived."""
        for ticket, reply in list(self.window.desk.take(list(self.tickets))):
            self.tickets.discard(ticket)
            self.replies[ticket] = reply


class Tasks:
    """All tasks of a hub, on its event loop."""

    def __init__(self, hub: Hub, devices: Devices, only: Only) -> None:
        self._hub, self._devices, self._only = hub, devices, only
        self._open: dict[str, _Open] = {}
        self._random = random.Random()

    def routes(self) -> list[web.RouteDef]:
        """The paths."""
        read, write = self._only("viewer", "operator"), self._only("operator")
        return [
            web.post("/v1/tasks", self._offer),
            *(web.route(way, f"/v1/tasks/{{task}}{path}", self._for_member(asked))
              for (way, path), asked in PATHS.items()),
            web.get("/v1/tasks", read(self._listed)),
            web.put("/v1/tasks/{task}", write(self._put)),
            web.get("/v1/tasks/{task}", read(self._shown)),
            web.delete("/v1/tasks/{task}", write(self._end)),
            web.post("/v1/tasks/{task}/messages", write(self._send)),
            web.get("/v1/tasks/{task}/replies", write(self._reply)),
            web.delete("/v1/tasks/{task}/replies/{ticket}", write(self._taken)),
        ]  # fmt: skip

    async def work(self) -> None:
        """Until cancelled: end the tasks whose servers are silent."""
        while True:
            await asyncio.sleep(_SWEEP)
            now = self._hub.clock()
            for name, one in list(self._open.items()):
                if now - one.heard > one.task.lease:
                    self._over(name)

    def leave(self) -> None:
        """Tell everybody who waits that it is over."""
        for name in list(self._open):
            self._over(name)

    def _over(self, name: str) -> None:
        self._open.pop(name).window.end()

    # -- devices

    async def _offer(self, request: web.Request) -> web.StreamResponse:
        known, _ = self._devices.device(request)
        self._devices.asks(known)
        offer = joining.read_offer(await body_of(request, joining.MAX_BYTES))
        tasks = {name: one.task for name, one in self._open.items()}
        taken = {name: one.members.keys() for name, one in self._open.items()}
        attributes = {**offer.attributes, **known.labels, "device": known.id}
        chosen = choose(tasks, taken, known.id, offer, attributes)
        interval = spread(self._hub.settings.interval, len(self._hub.fleet.devices), self._hub.settings.capacity)
        seconds = again(known.id, interval, self._hub.clock(), self._random.random())
        if chosen.task:
            one = self._open[chosen.task]
            one.members[known.id] = chosen.member
            one.nodes[node_of(known.id)] = known.id
            one.window.desk.seen(node_of(known.id))
        return answered(joining.written(Answer(seconds, chosen.task, chosen.population, chosen.why)))

    def _for_member(self, asked: Asked) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def handler(request: web.Request) -> web.StreamResponse:
            known, _ = self._devices.device(request)
            one = self._open.get(request.match_info["task"])
            if one is None or known.id not in one.members:
                raise Refused(410, "the task is over, or another device's; offer this device again")
            self._devices.pace(known)
            one.window.desk.seen(node_of(known.id))
            try:
                async with asyncio.timeout(_UPLOAD):
                    return await asked(one.window, request, known.id)
            except TimeoutError:
                raise Refused(408, f"expected the reply within {_UPLOAD:g} s") from None

        return handler

    # -- servers of runs

    def _task(self, request: web.Request, *, renew: bool = True) -> _Open:
        found = self._open.get(request.match_info["task"])
        if found is None:
            raise Refused(404, "expected the id of a task that goes on; put it again")
        if renew:
            found.heard = self._hub.clock()
        return found

    async def _listed(self, request: web.Request, token: Token) -> web.StreamResponse:
        shown = [{"id": name, "population": one.task.population, "joined": len(one.members),
                  "present": len(one.window.desk.present())} for name, one in self._open.items()]  # fmt: skip
        return web.json_response({"tasks": shown})

    async def _put(self, request: web.Request, token: Token) -> web.StreamResponse:
        name = request.match_info["task"]
        if not _NAME.fullmatch(name):
            raise Refused(400, f"expected an id of a-z 0-9 . _ -, got {name!r:.80}")
        task = read_task(await parsed_body(request), "task")
        there = self._open.get(name)
        if there is None:
            if len(self._open) >= _MOST_TASKS:
                raise Refused(429, f"expected at most {_MOST_TASKS} tasks, got more")
            there = self._open[name] = _Open(task, self._hub.clock())
            await self._hub.noted(token.name, "task", {"task": name, "population": task.population})
        elif there.task != task:
            raise Refused(409, f"the task {name} goes on with other settings; end it first")
        there.heard = self._hub.clock()
        return web.json_response(self._data(name, there))

    async def _shown(self, request: web.Request, token: Token) -> web.StreamResponse:
        one = self._task(request, renew=token.scope == "operator")
        return web.json_response(self._data(request.match_info["task"], one))

    @staticmethod
    def _data(name: str, one: _Open) -> dict[str, Any]:
        """Nodes are texts: they have more digits than numbers of JSON in some languages."""
        present = set(one.window.desk.present())
        devices = {
            device: {**one.members[device]._asdict(), "node": str(node), "present": node in present}
            for node, device in one.nodes.items()
        }
        return {"id": name, "population": one.task.population, "devices": devices}

    async def _end(self, request: web.Request, token: Token) -> web.StreamResponse:
        self._task(request)
        self._over(request.match_info["task"])
        return web.Response(status=204)

    async def _send(self, request: web.Request, token: Token) -> web.StreamResponse:
        one = self._task(request)
        words = request.query.get("nodes", "").split(",")
        if not all(word.isascii() and word.isdigit() and len(word) < 20 for word in words):
            raise Refused(400, "expected nodes=NUMBER,NUMBER,…")
        message = await body_of(request, one.task.most)
        given = one.window.desk.give({int(word): message for word in words if int(word) in one.nodes})
        one.tickets |= given.keys()
        return web.json_response({"tickets": {ticket: str(node) for ticket, node in given.items()}})

    async def _reply(self, request: web.Request, token: Token) -> web.StreamResponse:
        one = self._task(request)
        try:
            until = self._hub.clock() + min(max(float(request.query.get("wait", "0")), 0.0), WAIT)
        except ValueError:
            raise Refused(400, "expected wait=SECONDS") from None
        one.collect()
        while not one.replies and self._hub.clock() < until and not one.window.over:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(one.window.news(), min(1.0, until - self._hub.clock()))
            one.collect()
        if not one.replies:
            return web.Response(status=204)
        ticket, reply = next(iter(one.replies.items()))
        if isinstance(reply, Failure):
            return web.json_response({"failure": str(reply)}, headers={"Msedge-Ticket": ticket})
        return web.Response(body=reply, content_type="application/octet-stream", headers={"Msedge-Ticket": ticket})

    async def _taken(self, request: web.Request, token: Token) -> web.StreamResponse:
        self._task(request).replies.pop(request.match_info["ticket"], None)
        return web.Response(status=204)
