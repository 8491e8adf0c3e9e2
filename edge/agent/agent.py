"""The agent of a device: several applications, one repository, one folder.

    agent = Agent("/var/lib/msedge", {"keywords": Settings()}, source)
    agent.start()
    agent.on_switch("keywords", lambda folder: reload(folder / "keywords.mslite"))
    while True:
        agent.once()
        time.sleep(agent.pause)

One process at a time has a folder. Others find what runs by `installed`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from edge.agent.application import Application, Settings, Wish
from edge.agent.conversation import Backoff
from edge.agent.errors import AgentError
from edge.agent.machine import Machine
from edge.agent.slots import READ_ONLY, Slots, remove
from edge.agent.source import Source
from edge.agent.update import MAKING, TRYING, Outcome
from lite_runtime._files import TEMPORARY, locked, refusal, write_atomically
from lite_runtime.errors import MsedgeError
from lite_runtime.updates import checkin
from lite_runtime.updates.fields import sayable
from lite_runtime.updates.release import may_name

__all__ = ["Agent", "installed", "peek"]

APPLICATIONS, LOCK, EVENTS, TRUST, IDENTITY = "applications", "lock", "events.json", "trust", "identity"
MOST_EVENTS = checkin.MAX_EVENTS
LEAST, NEWS = 0.1, 3.0
"""Seconds of the shortest pause; within which the hub is told how an update has ended."""
_HUGE = 1e15
"""Larger values count as this one: a report has no larger ones."""

Watch = Callable[[checkin.Event], None]
Ask = Callable[[checkin.Report], checkin.Reply]


def installed(folder: str | os.PathLike[str], application: str, file: str = "") -> Path | None:
    """The running files of an application, or one of them; None if nothing runs. Takes no lock, writes nothing, and may
    be called in any process while an agent runs. Raises AgentError for a name that no application has."""
    state, _ = Slots(_folder_of(Path(folder), application), writable=False).load()
    if state.running is None:
        return None
    return Slots(_folder_of(Path(folder), application), writable=False).files(state.running.slot) / file


def _folder_of(folder: Path, application: str) -> Path:
    if not may_name(application):
        raise AgentError(f"expected the name of an application, got {application!r}")
    return folder / APPLICATIONS / application


class Agent:
    """The applications of a device and their updates. Not for use by several threads at once.

    folder: where everything is kept. applications: what is configured, by name. source: where versions come from; None
    to give one later (`once`). machine: what this machine is. every: seconds between two looks at the source. watch: is
    told of each event. Raises AgentError for wrong names, and if another agent has the folder.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        applications: Mapping[str, Settings],
        source: Source | None = None,
        *,
        machine: Machine | None = None,
        every: float = 3600.0,
        attributes: Mapping[str, str] | None = None,
        watch: Watch = lambda event: None,
    ) -> None:
        self.folder, self.source, self.every, self._watch = Path(folder), source, every, watch
        self.attributes = dict(attributes or {})
        self._machine = machine or Machine()
        self._lock = _locked(self.folder)
        if self._lock is not None:
            _swept(self.folder)
        self._events, self._serial = _events_in(self.folder)
        self._measures: dict[str, dict[str, checkin.Measure]] = {}
        self._look_at, self._backoff = -float("inf"), Backoff(longest=every)
        self.trouble, self._news = "", False
        self.applications = {
            name: Application(name, _folder_of(self.folder, name), settings, self._machine, self._sayer(name))
            for name, settings in applications.items()
        }

    # -- for the application -------------------------------------------------------------------------------------------

    def current(self, application: str, file: str = "") -> Path | None:
        """The folder of the running files, or one of them; None if nothing runs."""
        folder = self._application(application).folder
        return None if folder is None else folder / file

    def personal(self, application: str, file: str) -> Path:
        """Where to keep what was learned on a file of the running version: there it is found by the next one. Raises
        AgentError if nothing runs."""
        try:
            return self._application(application).personal(file)
        except OSError as problem:
            raise refusal(str(problem.filename), problem, AgentError) from problem

    def on_switch(self, application: str, call: Callable[[Path], object]) -> None:
        """Call a function with the folder of the running files after each switch. One that raises fails the trial."""
        self._application(application).callbacks.append(call)

    def measured(self, application: str, name: str, value: float) -> None:
        """Count a figure of the running version, such as "latency_ms" or "confidence", into the mean that is reported
        to the hub. A value that is not finite is left out. Raises AgentError for a name that a report cannot have, and
        for more than 64."""
        held = self._measures.setdefault(self._application(application).name, {})
        if not may_name(name) or (name not in held and len(held) >= checkin.MAX_MEASURES):
            raise AgentError(
                f"expected the name of a measure, of a-z 0-9 . _ -, {checkin.MAX_MEASURES} at most; got {name!r}"
            )
        if math.isfinite(value):
            before = held.get(name, checkin.Measure(0, 0.0))
            number = before.number + 1
            mean = before.mean + (min(max(value, -_HUGE), _HUGE) - before.mean) / number
            held[name] = checkin.Measure(number, mean)

    # -- running -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Go on after the last process, however it ended. What runs is known after this, without a network."""
        for one in self.applications.values():
            one.start()
            one.advance(None)

    def once(self, source: Source | None = None) -> None:
        """Look at the source if it is time, and do what can be done now. Never raises for what a source does.

        source: look at this one, whatever the time, and take the newest version of each application's channel.
        """
        given, source = source, source or self.source
        if source is not None and (given is not None or time.monotonic() >= self._look_at):
            self._look_at = time.monotonic() + self.every * random.uniform(0.75, 1.25)  # a fleet must not ask as one
            self._look(source)
        self.advance(source)

    def advance(self, source: Source | None = None) -> None:
        """Do what can be done now, without looking for other versions."""
        for one in self.applications.values():
            one.advance(source or self.source)

    def _look(self, source: Source) -> None:
        """Take the newest version of each channel: what an agent without a hub does."""
        try:
            source.refresh()
        except MsedgeError as problem:
            self._failed(f"the repository: {problem}")
            self._look_at = min(self._look_at, time.monotonic() + self._backoff.failed())
            return
        self.trouble = ""
        self._backoff.succeeded()
        for name, one in self.applications.items():
            try:
                versions = source.channel(name, one.settings.channel).versions
                if versions:
                    one.assign(Wish(versions[-1]), source)
            except MsedgeError as problem:
                self._failed(f"{name}: {problem}")

    def _failed(self, text: str) -> None:
        if text != self.trouble:
            self._sayer("")("trouble", "", text)
        self.trouble = text

    def run(self, ask: Ask | None = None, stop: threading.Event | None = None) -> None:
        """Work until `stop` is set. ask: checks in with a hub, which says what to run; without it, channels do."""
        ended, again = stop or threading.Event(), 0.0
        while not ended.is_set():
            if ask is None:
                self.once()
            else:
                if time.monotonic() >= again:
                    self._news, again = False, time.monotonic() + self.check_in(ask)
                self.advance()
                if self._news:  # how an update has ended is not kept until the next check-in
                    self._news, again = False, min(again, time.monotonic() + random.uniform(0, NEWS))
            ended.wait(min(self.pause, max(LEAST, again - time.monotonic())) if ask else self.pause)

    def check_in(self, ask: Ask) -> float:
        """Report to the hub, and do as it says; seconds until the next time."""
        try:
            reply = ask(self.report())
        except MsedgeError as problem:
            self._failed(f"the hub: {problem}")
            return self._backoff.failed(float(getattr(problem, "seconds", 0.0)))
        self._backoff.succeeded()
        self.apply(reply)
        return max(1.0, reply.again)

    @property
    def pause(self) -> float:
        """Seconds until there may be something to do."""
        look = self._look_at - time.monotonic() if math.isfinite(self._look_at) else self.every
        return max(LEAST, min([look, *(one.pause for one in self.applications.values())]))

    # -- what people say -----------------------------------------------------------------------------------------------

    def rollback(self, application: str, reason: str = "somebody asked for it") -> None:
        """Let the version before run again. Raises AgentError if there is none."""
        one = self._application(application)
        if not one.rollback(reason):
            raise AgentError(f"{application}: expected a version before the running one, got none")

    def again(self, application: str, version: str = "") -> None:
        """Let versions be tried again that were refused; "": all."""
        self._application(application).again(version)
        self._look_at = -float("inf")

    # -- the hub -------------------------------------------------------------------------------------------------------

    def report(self) -> checkin.Report:
        """What the hub is told of this device."""
        facts = self._machine.facts(self.folder)
        return checkin.Report(
            attributes=self.attributes,
            target=facts.targets[0] if facts.targets else "",
            runtime=facts.runtime,
            free=facts.free or 0,
            memory=facts.total or 0,
            battery=-1 if facts.battery is None else facts.battery,
            charging=bool(facts.charging),
            metered=bool(facts.metered),
            idle=bool(facts.idle),
            applications={name: self._reported(one) for name, one in self.applications.items()},
            events=tuple(self._events),
        )

    def _reported(self, one: Application) -> checkin.Application:
        state, trying = one.state, one.state.phase in TRYING
        stays = state.previous if trying else state.running
        outcome = _outcome_of(one)
        if outcome is not None:
            outcome = outcome._replace(reason=sayable(outcome.reason, checkin.MAX_REASON))
        return checkin.Application(
            version="" if stays is None else stays.version,
            trial=state.running.version if trying and state.running is not None else "",
            outcome=None if outcome is None else checkin.Outcome(*outcome),
            measures=dict(self._measures.get(one.name, {})),
        )

    def apply(self, reply: checkin.Reply) -> None:
        """Do as the hub says: begin with what it assigns, if the application's owners let that version run."""
        if reply.received > self._serial:  # this device has lost its count: what it has is new all the same
            self._events = [one._replace(serial=one.serial + reply.received) for one in self._events]
            self._serial += reply.received
        else:
            self._events = [event for event in self._events if event.serial > reply.received]
        self._write_events()
        if self.source is None or not reply.applications:
            return
        try:
            self.source.refresh()
        except MsedgeError as problem:
            self._failed(f"the repository: {problem}")
            return
        self.trouble = ""
        for name, wanted in reply.applications.items():
            if name in self.applications:
                try:
                    self._assign(self.source, self.applications[name], wanted)
                except MsedgeError as problem:
                    self.applications[name].waiting = str(problem)
                    self._failed(f"{name}: {problem}")

    def _assign(self, source: Source, one: Application, wanted: checkin.Assignment) -> None:
        wish = Wish(wanted.version, wanted.rollout, wanted.urgent)
        one.wish = wish
        versions = source.channel(one.name, wanted.channel).versions
        if wanted.version in versions:
            one.assign(wish, source)
            return
        expected = f"expected a version of channel {wanted.channel!r} ({', '.join(versions) or 'none'})"
        one.decline(wish, f"{expected}, got {wanted.version!r} from the hub, which its owners do not let run")

    # -- what is known -------------------------------------------------------------------------------------------------

    def status(self) -> dict[str, Any]:
        """All that is known, in JSON's types."""
        return _status(self.folder, self.applications, self._machine, self._events, self.trouble)

    def close(self) -> None:
        """Give the folder to another agent."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _application(self, name: str) -> Application:
        if name not in self.applications:
            raise AgentError(f"no application {name!r}; this agent has {', '.join(self.applications) or 'none'}")
        return self.applications[name]

    # -- events --------------------------------------------------------------------------------------------------------

    def _sayer(self, application: str) -> Callable[[str, str, str], None]:
        def say(kind: str, version: str, text: str) -> None:
            self._serial += 1
            event = checkin.Event(
                self._serial, max(time.time(), 0.0), kind, application, version, sayable(text, checkin.MAX_REASON)
            )
            self._events = [*self._events, event][-MOST_EVENTS:]
            self._write_events()
            if kind in checkin.OUTCOMES:
                self._news = True
                self._measures.pop(application, None)  # they are of one version
            self._watch(event)

        return say

    def _write_events(self) -> None:
        """Keep them where the disk allows it; nothing depends on them."""
        table = {"serial": self._serial, "events": [event._asdict() for event in self._events]}
        with contextlib.suppress(AgentError):
            write_atomically(self.folder / EVENTS, json.dumps(table).encode(), AgentError)


def _events_in(folder: Path) -> tuple[list[checkin.Event], int]:
    """The events that the hub has not said it has, and the serial of the last. Damaged ones are lost."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError, MsedgeError):
        table = json.loads((folder / EVENTS).read_bytes()[: 1 << 20])
        held = checkin.Report(events=tuple(checkin.Event(**row) for row in table["events"][-MOST_EVENTS:]))
        return list(checkin.read_report(checkin.written(held), most=1 << 20).events), int(table["serial"])
    return [], 0


def _outcome_of(one: Application) -> Outcome | None:
    """What has become of the last assignment so far."""
    state, wish = one.state, one.wish
    if state.phase in MAKING and state.coming is not None:
        kind = "waits" if one.waiting else "downloads"
        return Outcome(state.coming.version, state.rollout, kind, one.waiting)
    if state.phase in TRYING and state.running is not None:
        return Outcome(state.running.version, state.rollout, "trial")
    if one.waiting and wish is not None:
        return Outcome(wish.version, wish.rollout, "waits", one.waiting)
    return state.outcome


def peek(folder: str | os.PathLike[str], applications: Mapping[str, Settings]) -> dict[str, Any]:
    """What `Agent.status` says, from the disk alone; another process may have an agent meanwhile."""
    base, machine = Path(folder), Machine()
    found = {
        name: Application(name, _folder_of(base, name), settings, machine, writable=False)
        for name, settings in applications.items()
    }
    return _status(base, found, machine, _events_in(base)[0], "")


def _status(
    folder: Path, found: Mapping[str, Application], machine: Machine, events: Sequence[checkin.Event], trouble: str
) -> dict[str, Any]:
    return {
        "folder": str(folder),
        "trouble": trouble,
        "facts": machine.facts(folder)._asdict(),
        "applications": {name: _status_of(one) for name, one in found.items()},
        "events": [event._asdict() for event in events[-16:]],
    }


def _status_of(one: Application) -> dict[str, Any]:
    state = one.state
    return {
        "phase": str(state.phase),
        "running": None if state.running is None else state.running._asdict(),
        "previous": None if state.previous is None else state.previous._asdict(),
        "coming": None if state.coming is None else state.coming._asdict(),
        "folder": None if one.folder is None else str(one.folder),
        "waits": one.waiting,
        "trouble": one.trouble,
        "outcome": None if state.outcome is None else state.outcome._asdict(),
        "refused": [refused._asdict() for refused in state.refused],
        "checks": {name: {**found._asdict(), "refusal": None} for name, found in one.found.items()},
    }


def _swept(folder: Path) -> None:
    """Remove what earlier agents were writing when they were killed: whoever has the lock is the only one who writes
    here. Folders of applications are cleaned by their state; applications themselves write to some of them."""
    for path in (*folder.glob(".*.tmp"), *(folder / TRUST).rglob(".*.tmp"), *(folder / IDENTITY).glob(".*.tmp")):
        if TEMPORARY.fullmatch(path.name):
            remove(path)


def _locked(folder: Path) -> int | None:
    """The lock of a folder, which the system gives back when this process ends; None where none can be had."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle = locked(folder / LOCK)
    except OSError as problem:
        if problem.errno in READ_ONLY:
            return None  # it cannot be changed by another one either
        raise refusal(str(folder), problem, AgentError) from problem
    if handle is None:
        raise AgentError(f"{str(folder)!r}: expected no other agent, but one runs; stop it first")
    return handle
