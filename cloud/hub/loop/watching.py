"""When a cycle begins: what devices tell has changed, or it is time. The state is one file, replaced as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cloud.hub.client import Client
from cloud.hub.errors import HubError
from cloud.hub.loop.cycle import Cycle
from cloud.hub.loop.drift import NOTHING, State, Told, after, windows_to_detect
from cloud.hub.loop.plan import Plan
from lite_runtime._files import write_atomically

__all__ = ["FILE", "Watcher"]

FILE = "watching.json"
_DAY = 86_400.0
_SHOWN = 3
"""Streams that the reason names."""


class Watcher:
    """Looks at what devices tell. The file is in the loop's folder; a damaged one begins anew. Not for many threads."""

    def __init__(self, plan: Plan, client: Client) -> None:
        self._plan, self._client = plan, client
        self._path = plan.path(plan.loop.folder) / FILE
        self.version, self.last, self.since, self.first, self.state = "", NOTHING, 0.0, 0.0, State()
        self._read()

    def look(self, version: str, now: float) -> None:
        """Take in what was told of a version since the last look."""
        self.first = self.first or now
        if version != self.version:
            self.version, self.last, self.since, self.state = version, NOTHING, now, State()
        drift = self._plan.file.drift
        if drift is not None and version and not self.state.alarm:
            told = self._told(version).only(drift.streams)
            window = told.minus(self.last)
            if window is None:
                self.last = told  # the hub has removed what is old
            elif window.examples >= drift.examples and now - self.since >= drift.every:
                self.state = after(self.state, window, drift.rule)
                self.last, self.since = told, now
        self._write()

    def cause(self, cycle: Cycle, now: float) -> dict[str, Any] | None:
        """Why a cycle should begin now; None if it should not."""
        schedule = self._plan.file.schedule
        if cycle.number and now - cycle.ended < schedule.rest * _DAY:
            return None
        if self.state.alarm:
            names = self.state.changed()[:_SHOWN]
            words = ", ".join(f"{name} by {self.state.streams[name].distance:.2f}" for name in names)
            return {
                "text": f"what devices tell of {self.version} has changed: {words}", "kind": "drift",
                "streams": names, "windows": self.state.windows, "evidence": self.state.evidence,
            }  # fmt: skip
        if schedule.every and self.version and now - (cycle.ended or self.first) >= schedule.every * _DAY:
            return {"text": f"{schedule.every:g} days have passed", "kind": "schedule"}
        return None

    def data(self) -> dict[str, Any]:
        """What people see, in JSON's types."""
        drift, state = self._plan.file.drift, self.state
        found: dict[str, Any] = {"version": self.version, "windows": state.windows, "alarm": state.alarm,
                                 "reference": state.reference.examples, "evidence": state.evidence}  # fmt: skip
        if drift is not None:
            count = max(1, len(state.reference.streams()))
            late = windows_to_detect(2 * drift.tolerance, drift.rule, count)
            found |= {"bound": drift.rule.between,
                      "detects": {"distance": 2 * drift.tolerance, "windows": late,
                                  "examples": None if late is None else late * drift.examples}}  # fmt: skip
        found["streams"] = {name: {"distance": one.distance, "evidence": one.evidence}
                            for name, one in state.streams.items()}  # fmt: skip
        return found

    def _told(self, version: str) -> Told:
        try:
            return Told.of(self._client.json("GET", f"/v1/telemetry/{self._plan.loop.application}/{version}"))
        except (KeyError, TypeError, ValueError, AttributeError) as problem:
            raise HubError(f"telemetry: expected sketches and classes, got another answer: {problem}") from None

    def _read(self) -> None:
        try:
            table = json.loads(Path(self._path).read_bytes())
            state, last = State.of(table["state"]), Told.of(table["last"])
            self.version, self.since, self.first = str(table["version"]), float(table["since"]), float(table["first"])
            self.state, self.last = state, last
        except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError):
            return

    def _write(self) -> None:
        table = {"version": self.version, "since": self.since, "first": self.first, "last": self.last.plain(),
                 "state": self.state.plain()}  # fmt: skip
        write_atomically(self._path, json.dumps(table).encode(), HubError)
