"""One loop as a state machine over events: what is due is a function of what happened.

    idle -> (began) step after step -> idle, by "finished" or "failed"

A step that has a gate waits for a person first: "approved" lets it begin, "rejected" ends the cycle. `apply` alone
changes the state, so that the same events always give the same one: whoever does the steps may be killed at any moment
and reads the events again. A step that was done without its event being stored is done again, and has to give the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cloud.hub.errors import HubError

__all__ = ["STEPS", "Cycle", "Event"]

STEPS: Mapping[str, str] = MappingProxyType({
    "learn": "a federated run, or training in the cloud",
    "judge": "what was learned is compared with the budget",
    "convert": "a bundle of it",
    "sign": "a release, in the channel of candidates",
    "canary": "a rollout to a few devices",
    "promote": "the channel of all devices",
    "rollout": "a rollout to all devices",
})  # fmt: skip
"""The steps of a cycle in order, and what comes of them. A gate may stand before each."""
_MOST_TROUBLES = 8
_NONE: Mapping[str, Any] = MappingProxyType({})


class Event(NamedTuple):
    """Something that happened to a loop at a time (seconds since 1970). step: of STEPS, "": the cycle's. by: a person,
    or the loop. data: in JSON's types."""

    kind: str
    time: float
    step: str = ""
    by: str = ""
    text: str = ""
    data: Mapping[str, Any] = _NONE


class Cycle:
    """The state after some events. Raises HubError for events that cannot follow.

    number: of the present or the last cycle, from 1. status: idle, running, or waits (for a person, before `step`).
    results: what the steps that are done gave. outcome: how the last cycle ended ("finished", "failed", "": none yet).
    """

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self.number, self.events = 0, 0
        self.status, self.step, self.outcome, self.reason = "idle", "", "", ""
        self.began = self.ended = 0.0
        self.program = ""
        """Whose token began the cycle: it may not approve."""
        self.cause: Mapping[str, Any] = {}
        self.gates: tuple[str, ...] = ()
        self.results: dict[str, Mapping[str, Any]] = {}
        self.approvals: dict[str, str] = {}
        """By step, who let it begin."""
        self.troubles: list[str] = []
        """What went wrong in this step so far; it is tried again."""
        self.tries = 0
        for event in events:
            self.apply(event)

    @property
    def due(self) -> str:
        """The step that is to be done now, "" if there is none."""
        return self.step if self.status == "running" else ""

    def apply(self, event: Event) -> None:
        """Take an event in. Raises HubError, and changes nothing, for one that this state does not allow."""
        if event.kind not in _CHANGES:
            raise HubError(f"expected an event of {', '.join(_CHANGES)}, got {event.kind!r:.40}")
        states, change = _CHANGES[event.kind]
        if self.status not in states:
            there = " or ".join(states)
            raise HubError(f"{event.kind}: expected a loop that is {there}, got one that is {self.status}")
        if event.kind not in ("began", "failed") and event.step != self.step:
            raise HubError(f"{event.kind}: expected the step {self.step!r}, got {event.step!r:.40}")
        change(self, event)
        self.events += 1

    def _begin(self, event: Event) -> None:
        gates = event.data.get("gates", ())
        if unknown := [gate for gate in gates if gate not in STEPS]:
            raise HubError(f"gates: expected some of {', '.join(STEPS)}, got {unknown[0]!r:.40}")
        self.number, self.began, self.ended, self.program = self.number + 1, event.time, 0.0, event.by
        self.cause = {"text": event.text, **event.data.get("cause", {})}
        self.gates, self.results, self.approvals, self.reason = tuple(gates), {}, {}, ""
        self._at(next(iter(STEPS)))

    def _at(self, step: str) -> None:
        self.step, self.troubles, self.tries = step, [], 0
        self.status = "waits" if step in self.gates else "running"

    def _done(self, event: Event) -> None:
        self.results[event.step] = event.data
        names = list(STEPS)
        following = names[names.index(event.step) + 1 :]
        if following:
            self._at(following[0])
        else:
            self._end("finished", event)

    def _approved(self, event: Event) -> None:
        if event.by == self.program:
            raise HubError(f"approve: expected a person's token, got {event.by!r}, which does the loop's steps")
        self.approvals[event.step] = event.by
        self.status = "running"

    def _rejected(self, event: Event) -> None:
        self._end("failed", event._replace(text=f"rejected by {event.by}{': ' if event.text else ''}{event.text}"))

    def _troubled(self, event: Event) -> None:
        self.tries += 1
        self.troubles = [*self.troubles, event.text][-_MOST_TROUBLES:]

    def _failed(self, event: Event) -> None:
        self._end("failed", event)

    def _end(self, outcome: str, event: Event) -> None:
        self.status, self.outcome, self.reason, self.ended = "idle", outcome, event.text, event.time
        self.step = ""

    def data(self) -> dict[str, Any]:
        """What people see, in JSON's types."""
        return {
            "number": self.number, "status": self.status, "step": self.step, "outcome": self.outcome,
            "reason": self.reason, "began": self.began, "ended": self.ended, "cause": dict(self.cause),
            "gates": list(self.gates), "approvals": dict(self.approvals), "troubles": list(self.troubles),
            "results": {name: dict(one) for name, one in self.results.items()}, "events": self.events,
        }  # fmt: skip


_CHANGES: Mapping[str, tuple[tuple[str, ...], Callable[[Cycle, Event], None]]] = {
    "began": (("idle",), Cycle._begin),
    "done": (("running",), Cycle._done),
    "approved": (("waits",), Cycle._approved),
    "rejected": (("waits",), Cycle._rejected),
    "troubled": (("running",), Cycle._troubled),
    "failed": (("running", "waits"), Cycle._failed),
}
"""By kind of event: the states that allow it, and what it does."""
