"""The loop's program: reads what happened from the hub, does the step that is due, says what came of it.

The hub has the events, so that this process may be killed at any moment: the next one does the step again. One process
at a time has a loop's folder.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Any

from cloud.hub.client import Client, LostError, token_in
from cloud.hub.errors import HubError
from cloud.hub.loop.cycle import Cycle, Event
from cloud.hub.loop.doing import Doing, EndedError, StoppedError, WaitsError, newest, releases_of
from cloud.hub.loop.plan import Plan
from cloud.hub.loop.steps import DO, undo
from cloud.hub.loop.watching import Watcher
from lite_runtime._files import locked
from lite_runtime.errors import MsedgeError

__all__ = ["Runner", "client_of", "cycle_of"]

_LONGEST = 600.0
_MOST_TEXT = 2000


def client_of(plan: Plan) -> Client:
    """The hub of a plan. Raises HubError."""
    said = plan.file.hub
    authority = str(plan.path(said.authority)) if said.authority else None
    return Client(said.url, token_in(plan.path(said.token)), authority)


def cycle_of(client: Client, name: str) -> Cycle:
    """A loop as its events at the hub say. Raises HubError."""
    found = Cycle()
    while True:
        rows = client.json("GET", f"/v1/loops/{name}?after={found.events}")["log"]
        for row in rows:
            found.apply(Event(*(row[key] for key in Event._fields)))
        if not rows:
            return found


class Runner:
    """A loop's program. say: is told what happens, for people. stop: ends it. Raises HubError if another one runs."""

    def __init__(
        self, plan: Plan, client: Client, say: Callable[[str], None], stop: threading.Event | None = None
    ) -> None:
        self._plan, self._client, self._say, self._stop = plan, client, say, stop or threading.Event()
        folder = plan.path(plan.loop.folder)
        folder.mkdir(parents=True, exist_ok=True)
        lock = locked(folder / "lock")
        if lock is None:
            raise HubError(f"{str(folder)!r}: another process runs this loop; stop it first")
        self._lock = lock
        self._watcher = Watcher(plan, client)
        self._releases = releases_of(plan)
        self._settled = 0
        """The cycle whose failure left nothing behind."""

    def run(self, cycles: int = 0) -> Cycle:
        """Go on until `stop` is set, or so many cycles have ended (0: for ever); the state then."""
        ended, failures = 0, 0
        while not self._stop.is_set():
            try:
                cycle = cycle_of(self._client, self._plan.loop.name)
                after = self.turn(cycle)
                failures = 0
                ended += bool(after.number and cycle.status != "idle" and after.status == "idle")
                if cycles and ended >= cycles:
                    self._settle(after)
                    return after
                if after.due and after.events != cycle.events:
                    continue
            except StoppedError:
                break
            except LostError as problem:
                failures += 1
                self._say(str(problem))
            except MsedgeError as problem:  # of watching, or of somebody who did something meanwhile
                failures += 1
                self._say(str(problem))
            self._stop.wait(min(self._plan.loop.every * 2 ** min(failures, 10), _LONGEST) if failures
                            else self._plan.loop.every)  # fmt: skip
        return cycle_of(self._client, self._plan.loop.name)

    def turn(self, cycle: Cycle) -> Cycle:
        """Do what is to be done in a state; the state after it."""
        if cycle.due:
            return self._step(cycle)
        if cycle.status == "idle":
            self._settle(cycle)
            now = time.time()
            self._watcher.look(newest(self._releases, self._plan), now)
            cause = self._watcher.cause(cycle, now)
            if cause is not None:
                self._say(f"cycle {cycle.number + 1}: {cause['text']}")
                data = {"gates": list(self._plan.loop.approve), "cause": cause}
                return self._store(cycle, "began", "", cause["text"], data)
        return cycle

    def close(self) -> None:
        """Let another process have the loop."""
        os.close(self._lock)

    def _step(self, cycle: Cycle) -> Cycle:
        doing = Doing(self._plan, self._client, cycle, lambda text: self._say(f"{cycle.due}: {text}"), self._pause)
        self._say(f"{cycle.due} ({cycle.number})")
        try:
            result = DO[cycle.due](doing)
        except (StoppedError, LostError):
            raise
        except WaitsError as problem:
            if str(problem) in cycle.troubles:
                return cycle
            return self._store(cycle, "troubled", cycle.due, str(problem), {"waits": True})
        except EndedError as problem:
            return self._store(cycle, "failed", cycle.due, str(problem))
        except MsedgeError as problem:
            self._say(f"{cycle.due}: {problem}")
            last = cycle.tries + 1 >= self._plan.loop.attempts
            after = self._store(cycle, "failed" if last else "troubled", cycle.due, str(problem))
            if not last:
                self._pause(min(self._plan.loop.every * 2**cycle.tries, _LONGEST))
            return after
        return self._store(cycle, "done", cycle.due, "", result)

    def _settle(self, cycle: Cycle) -> None:
        """Take back what a cycle that failed has signed."""
        if cycle.outcome == "failed" and cycle.number != self._settled:
            if "convert" in cycle.results:
                undo(Doing(self._plan, self._client, cycle, self._say, self._pause))
            self._settled = cycle.number

    def _store(self, cycle: Cycle, kind: str, step: str, text: str, data: dict[str, Any] | None = None) -> Cycle:
        """Let the hub keep an event; the state after it. One that the hub has already, since its answer was lost, is
        found when events are read again."""
        body = {"number": cycle.events + 1, "kind": kind, "step": step, "text": text[:_MOST_TEXT], "data": data or {}}
        self._client.json("POST", f"/v1/loops/{self._plan.loop.name}/events", body)
        return cycle_of(self._client, self._plan.loop.name)

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise StoppedError("the loop was asked to end")
