"""Offers of a device to its hub, and the work on the tasks that it is given.

It offers itself, and is given a task or told when to come back. The messages are those of every federated run, with the
same privacy: what the device's owner demands is checked here (`federated.client.demands`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from edge.agent.conversation import Backoff, Conversation, LaterError
from edge.agent.errors import AgentError
from edge.agent.learning.populations import Population
from federated.client.device import VERSION
from federated.errors import FederatedError
from federated.transport.checkin.device import WAIT, Lost, work
from lite_runtime.errors import MsedgeError
from lite_runtime.frozen import NamedTuple
from lite_runtime.updates.joining import Offer

__all__ = ["Learning", "Now"]

NOTHING = 60.0
"""Seconds until a device looks again that has nothing to learn from, or whose owner does not want it now."""
PATIENCE = 600.0
"""Seconds for which a task goes on while the hub does not answer."""


class Now(NamedTuple):
    """What holds at the moment."""

    idle: bool = False
    charging: bool = False
    metered: bool = True


class Learning:
    """hub: a conversation for this alone, as the agent's thread has its own. now: the conditions, asked before each
    offer. populations: by application, those that have a bundle and examples now. watch: is told what happens. every:
    seconds between two looks while there are none."""

    def __init__(
        self, hub: Conversation, now: Callable[[], Now], populations: Callable[[], Mapping[str, Population]],
        attributes: Mapping[str, str] | None = None, watch: Callable[[str], None] = lambda line: None,
        every: float = NOTHING,
    ) -> None:  # fmt: skip
        self._hub, self._now, self._populations, self._watch = hub, now, populations, watch
        self._attributes, self._every = dict(attributes or {}), every
        self._backoff = Backoff()
        self.tasks = 0
        """Tasks that this device has worked on."""

    def once(self, stop: threading.Event | None = None) -> float:
        """Offer this device, and work on the task that it is given until that is over; seconds until the next offer.
        Raises nothing for what the hub does. stop: ends the work on a task."""
        now, there = self._now(), self._populations()
        if not there:
            return self._every
        members = {name: one.member for name, one in there.items()}
        offer = Offer((VERSION,), now.idle, now.charging, now.metered, self._attributes, members)
        try:
            answer = self._hub.join(offer)
        except MsedgeError as problem:
            self._watch(str(problem))
            return self._backoff.failed(float(getattr(problem, "seconds", 0.0)))
        self._backoff.succeeded()
        if not answer.task:
            return max(1.0, answer.again)
        if answer.population not in there:
            self._watch(f"expected a task of {', '.join(there)}, got one of {answer.population!r}")
            return max(1.0, answer.again)
        self._watch(f"task {answer.task}")
        try:
            work(_Place(self._hub, answer.task, stop), there[answer.population].node(), patience=PATIENCE)
            self.tasks += 1
        except MsedgeError as problem:
            self._watch(f"task {answer.task}: {problem}")
            return self._backoff.failed()
        return min(max(1.0, answer.again), 5.0)  # another may follow

    def run(self, stop: threading.Event) -> None:
        """Until `stop` is set."""
        until = 0.0
        while not stop.wait(max(0.0, until - time.monotonic())):
            until = time.monotonic() + self.once(stop)


class _Place:
    """A device's place in a task: requests below its address (`federated.transport.checkin.device.Asks`)."""

    def __init__(self, hub: Conversation, task: str, stop: threading.Event | None) -> None:
        self._hub, self._task, self._stop = hub, task, stop

    def ask(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Mapping[str, str], bytes]:
        """See `Asks`."""
        if self._stop is not None and self._stop.is_set():
            raise FederatedError("the device stops")
        below = f"/v1/tasks/{self._task}{path.removeprefix('/v1')}"
        try:
            status, headers, content = self._hub.task(method, below, body, WAIT if "wait=" in path else 0.0)
        except LaterError as problem:
            raise Lost(str(problem)) from problem
        except AgentError as problem:
            raise FederatedError(str(problem)) from problem
        if status == 410 and not path.startswith("/v1/work?"):
            raise FederatedError("the task is over")
        if status in (401, 403):
            raise FederatedError(f"the hub refuses this device (status {status})")
        return status, headers, content

    def another(self) -> _Place:
        """See `Asks`."""
        return _Place(self._hub.another(), self._task, self._stop)

    def __enter__(self) -> _Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._hub.close()
