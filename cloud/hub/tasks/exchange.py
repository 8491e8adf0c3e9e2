"""A federated run's end of a task: its messages go to devices through the hub, its replies come from there.

A hub that was restarted has lost the task: it is put again, and what devices have not answered is sent again. While the
hub cannot be reached, the run waits.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import msgspec

from cloud.hub.client import Client, GoneError, LostError
from cloud.hub.tasks.task import Task
from federated.server.replies import Failure

__all__ = ["HubExchange"]

_RETURN = 60.0
"""Seconds in which devices come back to a hub that was restarted."""
_PAUSE = 1.0
"""Seconds until a hub that does not answer is asked again."""


class HubExchange:
    """Messages of one task (`federated.server.gathering.Exchange`). seen: every device that joined, and what it said
    that it has. patience: seconds for which a hub may be silent; then LostError is raised."""

    def __init__(
        self, client: Client, name: str, task: Task, patience: float = 600.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:  # fmt: skip
        self._client, self._path, self._patience, self._sleep = client, f"/v1/tasks/{name}", patience, sleep
        self._task = json.dumps(msgspec.to_builtins(task)).encode()
        self.seen: dict[str, dict[str, Any]] = {}
        self._open: dict[str, tuple[int, bytes]] = {}
        """Messages without a reply by the ticket that the run has."""
        self._tickets: dict[str, str] = {}
        """The run's ticket by the hub's."""
        self._ready: dict[str, bytes | Failure] = {}
        self._put()

    # -- Exchange

    def nodes(self) -> Collection[int]:
        """Devices that gave a sign of life lately."""
        found = json.loads(self._asked("GET", self._path)[2])["devices"]
        for device, one in found.items():
            self.seen[device] = {"examples": one["examples"], "data": one["data"]}
        return {int(one["node"]) for one in found.values() if one["present"]}

    def send(self, kind: str, messages: Mapping[int, bytes]) -> dict[str, int]:
        """Let messages wait for their nodes; those that are equal are sent to the hub once."""
        given = {}
        for ticket, node in self._give(messages).items():
            self._tickets[ticket] = ticket
            self._open[ticket] = node, messages[node]
            given[ticket] = node
        return given

    def poll(self, tickets: Collection[str]) -> Iterator[tuple[str, bytes | Failure]]:
        """The replies that have arrived."""
        while self._one(0.0):
            pass
        for ticket in tickets:
            if ticket in self._ready:
                yield ticket, self._ready.pop(ticket)

    def now(self) -> float:
        """Seconds of the machine's monotonic clock."""
        return time.monotonic()

    def wait(self, seconds: float) -> None:
        """Until a reply arrives, at most this long."""
        if self._open:
            self._one(seconds)
        else:
            self._sleep(seconds)

    def close(self) -> None:
        """The task is over."""
        with contextlib.suppress(LostError, GoneError):
            self._client.ask("DELETE", self._path)

    # -- how

    def _one(self, wait: float) -> bool:
        """Take one reply from the hub, if there is one within so many seconds."""
        status, headers, content = self._asked("GET", f"{self._path}/replies?wait={wait:g}")
        if status == 204:
            return False
        theirs = headers["Msedge-Ticket"]
        ticket = self._tickets.pop(theirs, None)
        if ticket is not None and self._open.pop(ticket, None) is not None:
            failed = headers.get("Content-Type", "").startswith("application/json")
            self._ready[ticket] = Failure(json.loads(content)["failure"]) if failed else content
        self._asked("DELETE", f"{self._path}/replies/{theirs}")
        return True

    def _give(self, messages: Mapping[int, bytes]) -> dict[str, int]:
        """Hand messages to the hub; its tickets."""
        alike: dict[bytes, list[int]] = {}
        for node, message in messages.items():
            alike.setdefault(message, []).append(node)
        given: dict[str, int] = {}
        for message, nodes in alike.items():
            words = ",".join(map(str, nodes))
            content = self._asked("POST", f"{self._path}/messages?nodes={words}", message)[2]
            given |= {ticket: int(node) for ticket, node in json.loads(content)["tickets"].items()}
        return given

    def _put(self) -> None:
        self._patiently("PUT", self._path, self._task)

    def _asked(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Mapping[str, str], bytes]:
        """The hub's answer; a task that it has lost is put and sent again first."""
        try:
            return self._patiently(method, path, body)
        except GoneError:
            self._again()
            return self._patiently(method, path, body)

    def _again(self) -> None:
        """Put the task, and send what has no reply. Devices that have not come back yet have failed: the run asks them
        in its next round."""
        self._put()
        old, self._tickets = dict(self._open), {}
        there = self._back({node for node, _ in old.values()})
        for ticket, (node, message) in old.items():
            found = self._give({node: message}) if node in there else {}
            for theirs in found:
                self._tickets[theirs] = ticket
            if not found:
                self._open.pop(ticket)
                self._ready[ticket] = Failure("the hub was restarted, and the device has not come back")

    def _back(self, wanted: set[int]) -> set[int]:
        """Which of these nodes come back."""
        until = time.monotonic() + _RETURN
        while True:
            there = set(self.nodes()) & wanted
            if there == wanted or time.monotonic() > until:
                return there
            self._sleep(_PAUSE)

    def _patiently(self, method: str, path: str, body: bytes | None = None) -> tuple[int, Mapping[str, str], bytes]:
        until = time.monotonic() + self._patience
        while True:
            try:
                return self._client.ask(method, path, body)
            except LostError:
                if time.monotonic() + _PAUSE > until:
                    raise
                self._sleep(_PAUSE)
