"""The hub at work: reports, enrolments and orders of people, each answered when the database has it.

On the event loop alone, except what it hands to the writer's thread. When something could not be stored, what is in
memory may be ahead of the database: it is made anew from there, and until then everybody is asked to come again.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

from cloud.hub.database import audit, devices, telemetry, tokens
from cloud.hub.database.devices import Device
from cloud.hub.database.engine import Cursor, Database
from cloud.hub.database.tokens import Token
from cloud.hub.database.writing import Change, Writer
from cloud.hub.errors import DatabaseError, HubError
from cloud.hub.rollouts.plan import Plan
from cloud.hub.rollouts.rollout import JUDGE, Event, Rollout
from cloud.hub.server.authority import Authority
from cloud.hub.server.fleet import Fleet, Known, Seen
from cloud.hub.server.limits import Buckets
from cloud.hub.server.pacing import again, spread
from cloud.hub.server.sessions import Sessions, signed_by
from cloud.hub.server.settings import Settings
from lite_runtime.updates.checkin import Reply, Report
from lite_runtime.updates.enrolment import Enrolled, Enrolment, Greeting, Session, enrolment_text
from lite_runtime.updates.telemetry import Batch

__all__ = ["Busy", "Hub", "Refused"]

T = TypeVar("T")
LOG = logging.getLogger("msedge.hub")
EVERY = 1.0
"""Seconds between two looks at what rollouts decide by themselves."""
_PRUNE = 3600.0
_BATCHES = 48
"""Batches of telemetry of one device a day."""
_KNOWN = 5.0
"""Seconds for which a person's token is remembered: one that is revoked works so much longer."""


class Busy(HubError):
    """Not now: come again in a few seconds."""


class Refused(HubError):
    """Whoever asks is not who they say, or may not. status: of HTTP."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Hub:
    """Made from a database, of which it is the only hub. `close` stores what waits. clock: seconds since 1970."""

    def __init__(
        self, settings: Settings, database: Database, folder: Path, clock: Callable[[], float] = time.time
    ) -> None:
        self.settings, self.clock = settings, clock
        database.serve()
        with database.transaction() as cursor:
            self.id = _fact(cursor, "hub", lambda: secrets.token_hex(8))
            key = _fact(cursor, "session", lambda: secrets.token_hex(32))
            self.fleet = Fleet(cursor)
            audit.add(cursor, clock(), JUDGE, "serve", {"devices": len(self.fleet.devices)})
        self.authority = Authority(folder / "authority.pem", self.id)
        self.sessions = Sessions(self.id, bytes.fromhex(key), settings.session, clock)
        self._reader, self._reading = database.another(), Lock()
        self.writer = Writer(database)  # the connection that has the lock: without it nothing is written
        self._turn = asyncio.Event()
        self._waiting, self._stale, self._closed = 0, False, False
        self._tasks: set[asyncio.Future[Any]] = set()
        self._people: dict[str, tuple[Token | None, float]] = {}
        self._events = Buckets(settings.events / 3600, settings.events, clock)
        self._batches = Buckets(_BATCHES / 86_400, _BATCHES, clock)
        self._random = random.Random()

    # -- the database

    async def read(self, call: Callable[[Cursor], T]) -> T:
        """The result of a call that only reads, from a thread."""
        return await asyncio.to_thread(self._read, call)

    def _read(self, call: Callable[[Cursor], T]) -> T:
        with self._reading, self._reader.reading() as cursor:
            return call(cursor)

    async def _stored(self, changes: list[Change]) -> None:
        """Returns when changes are durable. Raises Busy if they could not be stored."""
        await self._done(self.writer.store(changes))

    async def _run(self, call: Callable[[Cursor], T]) -> T:
        """A call in a transaction of its own, whose failure leaves memory as it is. Raises Busy if the database
        failed."""
        try:
            return await asyncio.shield(asyncio.wrap_future(self.writer.run(call)))
        except DatabaseError as problem:
            raise Busy(f"the hub could not store this: {problem}; come again") from problem

    async def _done(self, waiting: Future[T]) -> T:
        try:
            return await asyncio.shield(asyncio.wrap_future(waiting))
        except HubError as problem:
            self._renew(problem)
            raise Busy(f"the hub could not store this: {problem}; come again") from problem

    def _renew(self, problem: HubError) -> None:
        LOG.error("not stored, the fleet is read again: %s", problem)
        if not self._stale:
            self._stale = True
            self._keep(asyncio.ensure_future(self._reload()))

    async def _reload(self) -> None:
        while self._stale and not self._closed:
            try:
                self.fleet = await self._run(Fleet)
                self._stale = False
            except HubError as problem:
                LOG.error("the fleet cannot be read: %s", problem)
                await asyncio.sleep(EVERY)

    def _keep(self, task: asyncio.Future[Any]) -> None:
        def ended(task: asyncio.Future[Any]) -> None:
            self._tasks.discard(task)
            if not task.cancelled():
                task.exception()  # it was logged

        self._tasks.add(task)
        task.add_done_callback(ended)

    @property
    def works(self) -> bool:
        """Whether the database has what is in memory."""
        return not self._stale and not self._closed

    def _ready(self) -> None:
        if not self.works:
            raise Busy("the hub is busy; come again")

    async def work(self) -> None:
        """Until cancelled: what rollouts decide as time passes, and removing what is old."""
        pruned = time.monotonic()  # not at once: a machine's clock may be wrong for a while after its start
        while True:
            await asyncio.sleep(EVERY)
            self._decide()
            if time.monotonic() - pruned > _PRUNE:
                pruned = time.monotonic()
                try:
                    await self._run(self._prune)
                except HubError as problem:
                    LOG.error("what is old was not removed: %s", problem)

    def _prune(self, cursor: Cursor) -> None:
        before = self.clock() - self.settings.keep * 86_400.0
        devices.prune(cursor, before)
        telemetry.prune(cursor, before)

    def leave(self) -> None:
        """Answer everybody who waits for news."""
        self._closed = True
        self._wake()

    async def close(self) -> None:
        """Store what waits and close the database."""
        self.leave()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await asyncio.to_thread(self.writer.close)  # with the database
        self._reader.close()

    # -- devices

    async def enrol(self, asked: Enrolment) -> Enrolled:
        """Make a device known. The same key with the same token gets the same answer again: it may have been lost.
        Raises Refused."""
        self._ready()
        if not signed_by(asked.key, asked.signature, enrolment_text(asked.token, asked.key)):
            raise Refused(403, "enrolment: the signature is not that of the key")
        now, identity = self.clock(), f"d{sha256(bytes.fromhex(asked.key)).hexdigest()[:20]}"
        ends = now + self.settings.certified

        def store(cursor: Cursor) -> Device:
            token = tokens.known(cursor, asked.token, now)
            if token is None or token.scope != "device":
                raise Refused(401, "enrolment: expected a token for a new device, got another text, or one that ended")
            there = devices.by_key(cursor, asked.key)
            if there is not None and (there.token != token.id or there.state != "active"):
                raise Refused(409, "enrolment: this key is a device's that enrolled before; make a new key")
            if there is not None:
                return there
            if not tokens.spend(cursor, token):
                raise Refused(401, "enrolment: this token was used; msedge hub token add makes another")
            made = Device(identity, asked.key, "active", now, 0.0, token.labels, "", 0, 0, ends, token.id)
            devices.add(cursor, made)
            audit.add(cursor, now, f"token {token.name}", "enrol", {"device": identity, "key": asked.key})
            return made

        made = await self._run(store)
        self.fleet.devices.setdefault(made.id, Known(made))
        certificate = self.authority.certify(made.id, made.key, self.settings.certified, now)
        return Enrolled(made.id, self.id, certificate, self.authority.pem)

    def known(self, identity: str) -> Known:
        """A device that may ask. Raises Refused."""
        found = self.fleet.devices.get(identity)
        if found is None or found.state != "active":
            raise Refused(403, "this device is not enrolled here, or was blocked")
        return found

    async def greet(self, asked: Greeting, bare: bool = False) -> Session:
        """A session for a device that has answered a challenge. bare: it has shown no certificate, and gets a new one:
        the last may have been lost on the way. Raises Refused, Busy."""
        known = self.known(asked.device)
        if why := self.sessions.answered(asked, known.key):
            raise Refused(401, f"session: {why}")
        now, certificate = self.clock(), ""
        if bare or known.certified - now < self.settings.certified / 3:
            ends = now + self.settings.certified
            await self._run(lambda cursor: devices.mark(cursor, known.id, certified=ends))
            known.certified = ends
            certificate = self.authority.certify(known.id, known.key, self.settings.certified, now)
        return Session(self.sessions.token(known.id), self.settings.session, now, certificate)

    async def check_in(self, known: Known, told: Report, wait: float, session: float) -> Reply:
        """Answer a report. wait: seconds for which the answer may wait for news. Raises Busy."""
        seen = await self._see(known, told)
        if wait and self._idle(told, seen) and self._waiting < self.settings.waiting:
            self._waiting += 1
            try:
                await asyncio.wait_for(self._turn.wait(), wait)
                if not self._closed:
                    seen = await self._see(known, told)
            except TimeoutError:
                pass
            finally:
                self._waiting -= 1
        now = self.clock()
        interval = self.settings.watch if seen.open else self.settings.interval
        interval = spread(interval, len(self.fleet.devices), self.settings.capacity)
        seconds = again(known.id, interval, now, self._random.random())
        return Reply(seconds, session, now, self.known(known.id).received, self.settings.telemetry, seen.applications)

    async def told(self, known: Known, batch: Batch) -> None:
        """Add a batch of telemetry up, once. Raises Refused where none is wanted, or too many come."""
        if not self.settings.telemetry:
            raise Refused(403, "this hub takes no telemetry")
        if self._batches.take(known.id):
            raise Refused(429, f"telemetry: expected at most {_BATCHES} batches a day, got more")
        may, now = self.fleet.versions_of(known), self.clock()
        await self._run(lambda cursor: telemetry.store(cursor, known.id, batch, may, now))

    async def _see(self, known: Known, told: Report) -> Seen:
        self._ready()
        known = self.known(
            known.id
        )  # it may have been blocked, or all been read again, while its body came or it waited
        room = self._room(known, told)
        seen = self.fleet.check_in(known, told, self.clock(), room)
        waiting = self.writer.store(seen.changes)
        if seen.news:
            self._decide()
        await self._done(waiting)
        return seen

    def _room(self, known: Known, told: Report) -> int:
        """How many events may be stored: all that are new, up to those of an hour, or none until the device has come
        less often."""
        fresh = min(sum(event.serial > known.received for event in told.events), max(1, int(self.settings.events)))
        return 0 if fresh and self._events.take(known.id, fresh) else fresh

    @staticmethod
    def _idle(told: Report, seen: Seen) -> bool:
        """Whether the answer says nothing that the device does not know."""
        for name, assigned in seen.applications.items():
            there = told.applications.get(name)
            if there is None:
                return False
            tried = there.outcome is not None and there.outcome.rollout == assigned.rollout
            if assigned.urgent or (assigned.version != (there.trial or there.version) and not tried):
                return False
        return True

    # -- rollouts

    def _wake(self) -> None:
        self._turn.set()
        self._turn = asyncio.Event()

    def _decide(self) -> None:
        """Store and tell what rollouts decide by themselves. What is lost before it is stored is decided again."""
        if self._stale or self._closed or not (made := self.fleet.decide(self.clock())):
            return
        for rollout, event, _ in made:
            LOG.warning("rollout %s: %s: %s", rollout.id, event.kind, event.text)

        def store(cursor: Cursor) -> None:
            for rollout, event, (words, values) in made:
                cursor.run(words, *values)
                _note(cursor, rollout, event)

        self._keep(asyncio.ensure_future(self._done(self.writer.run(store))))
        self._wake()

    async def start(self, plan: Plan, by: str) -> Rollout:
        """Begin a rollout. Raises HubError for one that is under way, Busy."""
        self._ready()
        rollout, change = self.fleet.start(plan, by, self.clock())
        await self._ordered(rollout, Event("started", self.clock(), by=by, text=f"{plan.version}"), change)
        return rollout

    async def order(self, identity: str, kind: str, by: str, text: str, data: Mapping[str, Any]) -> Rollout:
        """Pause, resume or abort a rollout. Raises HubError if there is none, or its state does not allow it; Busy."""
        self._ready()
        rollout = self.fleet.find(identity)
        event = Event(kind, self.clock(), by=by, text=text, data=data)
        await self._ordered(rollout, event, self.fleet.take(rollout, event))
        return rollout

    async def _ordered(self, rollout: Rollout, event: Event, change: Change) -> None:
        def store(cursor: Cursor) -> None:
            cursor.run(change[0], *change[1])
            _note(cursor, rollout, event)

        await self._done(self.writer.run(store))
        self._wake()

    # -- people

    async def person(self, words: str) -> Token | None:
        """The token of a person; None for a text that is none, or one of a device."""
        digest, now = sha256(words.encode("utf-8", "replace")).hexdigest(), self.clock()
        return await self._person(digest, lambda cursor: tokens.known(cursor, words, now))

    async def logged_in(self, identity: str) -> Token | None:
        """The token with this id, of a person who has shown it before; None if it has ended."""
        now = self.clock()
        return await self._person(identity, lambda cursor: tokens.by_id(cursor, identity, now))

    async def _person(self, key: str, look: Callable[[Cursor], Token | None]) -> Token | None:
        found, until = self._people.get(key, (None, 0.0))
        if time.monotonic() >= until:  # not by a clock that can be set back
            found = await self.read(look)
            if len(self._people) > 1000:
                self._people.clear()
            self._people[key] = found, time.monotonic() + _KNOWN
        return found if found is not None and found.scope != "device" else None

    async def noted(self, by: str, what: str, data: Mapping[str, Any]) -> None:
        """Write into the audit log what somebody did."""
        await self._done(self.writer.run(lambda cursor: audit.add(cursor, self.clock(), by, what, data)))

    async def run(self, call: Callable[[Cursor], T]) -> T:
        """A call in a transaction of its own, for the other parts of the server. Raises Busy while the hub ends."""
        self._ready()
        return await self._run(call)

    async def change(self, identity: str, by: str, **columns: Any) -> None:
        """Block a device or let it come again, or set its labels. Raises HubError for an unknown one, Busy."""
        if identity not in self.fleet.devices:
            raise HubError(f"expected the id of a device, got {identity!r:.80}")

        def store(cursor: Cursor) -> None:
            devices.mark(cursor, identity, **columns)
            audit.add(cursor, self.clock(), by, "device", {"device": identity, **columns})

        await self._run(store)
        known = self.fleet.devices[identity]  # the fleet may have been read again meanwhile
        for name, value in columns.items():
            setattr(known, name, value)


def _note(cursor: Cursor, rollout: Rollout, event: Event) -> None:
    data = {"rollout": rollout.id, "version": rollout.plan.version, "why": event.text}
    audit.add(cursor, event.time, event.by, f"rollout {event.kind}", data)


def _fact(cursor: Cursor, name: str, made: Callable[[], str]) -> str:
    """A fact of this hub, made at its first start."""
    row = cursor.one("SELECT value FROM facts WHERE name = ?", name)
    if row is not None:
        return str(row[0])
    value = made()
    cursor.run("INSERT INTO facts VALUES (?, ?)", name, value)
    return value
