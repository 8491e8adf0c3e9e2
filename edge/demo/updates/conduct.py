"""The demo from its beginning to its end: hub, loop and devices in processes of their own; people's part is done here.

1. The cloud trains a first version, signs it, and rolls it out; each device fits a head of its own.
2. A sensor's axis flips on a third of the devices. What they tell changes, and the loop notices.
3. The devices learn a new version together, by HTTPS alone; it is judged, converted and signed as a candidate.
4. A canary tries it; a person approves; all devices get it, and keep their own heads.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from cloud.hub.client import Client
from cloud.hub.database import tokens
from cloud.hub.database.opening import opened
from cloud.hub.loop.drift import windows_to_detect
from cloud.hub.loop.plan import read_plan
from cloud.hub.loop.watching import Watcher
from edge.demo.updates.crew import Crew, environment
from edge.demo.updates.device import Accuracy
from edge.demo.updates.scene import APP, SOURCE, name_of, scene, write_devices
from lite_runtime.errors import MsedgeError

__all__ = ["KEPT", "Outcome", "Pace", "View", "conduct"]

KEPT, RECOVERED = 0.95, 0.9
"""What success is: the share of the first gain of personal heads that is there at the end, and of the accuracy that the
changed devices lost."""
MONTH_WINDOWS = 730
"""Windows of telemetry in a month of simulated time: one an hour."""
LOOP = "sensing"
PERSON = "ann"


@dataclass(frozen=True)
class Pace:
    """How fast things go. drawn, every: examples and seconds of a device's batch. window: batches of each device that
    make one. reference: windows of the reference. calm: windows that are compared before the change. rounds, steps: of
    the federated run. interval: seconds between check-ins. soak, patience: of rollouts. limit: of each phase. slack:
    standard errors by which few devices may miss what personal heads keep, and what changed devices get back."""

    drawn: int = 20
    every: float = 2.0
    reference: int = 5
    calm: int = 4
    rounds: int = 16
    steps: int = 30
    interval: float = 4.0
    soak: float = 3.0
    patience: float = 30.0
    limit: float = 300.0
    slack: float = 0.0


QUICK = Pace(every=0.4, reference=4, calm=2, rounds=14, interval=1.0, soak=0.5, patience=1.5, limit=120.0, slack=2.0)


@dataclass(frozen=True)
class View:
    """What the live view shows: a phase in words, versions by number of devices, the evidence and its bound, the loop
    and its rollout as the hub shows them."""

    phase: str
    versions: Mapping[str, int]
    watching: Mapping[str, Any]
    loop: Mapping[str, Any]
    rollouts: Sequence[Mapping[str, Any]]


@dataclass
class Outcome:
    """What happened. before, changed, after: accuracies of all devices at the beginning, after the change, and at the
    end. windows, examples: from the change until it was noticed; promised: examples at the latest, for this distance.
    false_alarms: before the change. seconds: by phase. slack: of `Pace`."""

    scene: str
    devices: int
    slack: float = 0.0
    before: list[Accuracy] = field(default_factory=list)
    changed: list[Accuracy] = field(default_factory=list)
    after: list[Accuracy] = field(default_factory=list)
    windows: int = 0
    examples: int = 0
    distance: float = 0.0
    promised: int | None = None
    streams: list[str] = field(default_factory=list)
    bound: float = 0.0
    false_alarms: int = 0
    cycle: Mapping[str, Any] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @staticmethod
    def mean(rows: Sequence[Accuracy], which: str, changes: bool | None = None) -> float:
        """The mean over devices of `common`, `own` or `fresh`; changes: of those that change, or do not."""
        chosen = [getattr(row, which) for row in rows if changes is None or row.changes is changes]
        return fmean(chosen) if chosen else 0.0

    @property
    def kept(self) -> float:
        """The gain of own heads over the first common version, at the end and at the beginning, as a ratio."""
        common = self.mean(self.before, "common")
        gain = self.mean(self.before, "own") - common
        return (self.mean(self.after, "own") - common) / gain if gain > 0 else 1.0

    @property
    def kept_error(self) -> float:
        """The standard error of `kept` over devices."""
        gain = self.mean(self.before, "own") - self.mean(self.before, "common")
        changes = [new.own - old.own for old, new in zip(self.before, self.after, strict=True)]
        return _error(changes) / gain if gain > 0 else 0.0

    @property
    def against_fresh(self) -> float:
        """Of what a head that is fitted anew gains over the new common version, the share that the kept heads have."""
        common = self.mean(self.after, "common")
        gain = self.mean(self.after, "fresh") - common
        return (self.mean(self.after, "own") - common) / gain if gain > 0 else 1.0

    @property
    def worse_than_common(self) -> bool:
        """Whether own heads are worse than the new common version, by more than two standard errors over devices."""
        gains = [row.own - row.common for row in self.after]
        return fmean(gains) < -2 * _error(gains)

    @property
    def recovered(self) -> float:
        """Of the accuracy that the changed devices lost, the share that they have again."""
        lost = self.mean(self.before, "own", True) - self.mean(self.changed, "own", True)
        return (self.mean(self.after, "own", True) - self.mean(self.changed, "own", True)) / lost if lost > 0 else 1.0

    @property
    def recovered_error(self) -> float:
        """The standard error of `recovered` over the changed devices."""
        lost = self.mean(self.before, "own", True) - self.mean(self.changed, "own", True)
        gains = [new.own - old.own for old, new in zip(self.changed, self.after, strict=True) if new.changes]
        return _error(gains) / lost if lost > 0 else 0.0

    @property
    def updated(self) -> int:
        """Devices with the loop's version."""
        made = self.cycle.get("results", {}).get("sign", {}).get("version")
        return sum(row.version == made for row in self.after)

    @property
    def ok(self) -> bool:
        """Whether all of it succeeded."""
        ended = self.cycle.get("outcome") == "finished" and self.updated == self.devices
        personal = self.kept + self.slack * self.kept_error >= KEPT and not self.worse_than_common
        again = self.recovered + self.slack * self.recovered_error >= RECOVERED
        return ended and not self.false_alarms and personal and again

    def as_dict(self) -> dict[str, Any]:
        """In JSON's types."""
        names = ("ok", "kept", "kept_error", "against_fresh", "recovered", "recovered_error", "updated")
        figures = {name: getattr(self, name) for name in names}
        means = {
            f"{name}_{which}": self.mean(getattr(self, name), which)
            for name in ("before", "changed", "after") for which in ("common", "own", "fresh")
        }  # fmt: skip
        rows = {name: [row._asdict() for row in getattr(self, name)] for name in ("before", "changed", "after")}
        return {**figures, **means, **{k: v for k, v in asdict(self).items() if k not in rows}, **rows}


def _error(values: Sequence[float]) -> float:
    """The standard error of a mean."""
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0


def conduct(
    folder: Path, devices: int, data: Path | None, pace: Pace, processes: int, say: Callable[[str], None],
    show: Callable[[View], None],
) -> Outcome:  # fmt: skip
    """The demo; leaves its files in the folder. Raises MsedgeError for what does not go on within `pace.limit`."""
    found = Outcome("", devices, pace.slack)
    with contextlib.ExitStack() as stack:
        demo = _Demo(folder, devices, data, pace, say, show, found)
        with demo.phase("the first version"):
            demo.prepare()
            stack.enter_context(demo.hub())
            stack.enter_context(demo.crews(processes))
            demo.make()
            demo.enrol()
            stack.enter_context(demo.loop())
            demo.roll_out_first()
        with demo.phase("heads of their own"):
            demo.all("personalise")
            found.before = demo.measured()
        with demo.phase("telemetry of every day"):
            demo.all("talk")
            demo.calm()
        with demo.phase("until it is noticed"):
            demo.flip()
            demo.noticed()
        with demo.phase("learning together, judging, converting, signing"):
            demo.until("learned", lambda: demo.view.loop.get("step") in ("canary", "promote", "rollout"))
        with demo.phase("canary"):
            demo.until("the canary", lambda: demo.view.loop.get("step") in ("promote", "rollout"))
            demo.approve()
        with demo.phase("all devices"):
            demo.until("the rollout", lambda: demo.view.loop.get("status") == "idle")
            demo.until("all devices", demo.everywhere)
        found.cycle = demo.view.loop
        found.after = demo.measured()
    return found


class _Demo:
    def __init__(
        self, folder: Path, devices: int, data: Path | None, pace: Pace, say: Callable[[str], None],
        show: Callable[[View], None], found: Outcome,
    ) -> None:  # fmt: skip
        self._folder, self._devices, self._data, self._pace = folder, devices, data, pace
        self._say, self._show, self._found = say, show, found
        self._crews: list[Crew] = []
        self._processes: list[subprocess.Popen[str]] = []
        self._url, self._words = "", dict[str, str]()
        self._began = time.monotonic()
        self._phase, self._looked = "", 0.0
        self.view = View("", {}, {}, {}, ())

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """What is going on, in words; its seconds."""
        self._phase, began = name, time.monotonic()
        self._say(name)
        yield
        self._found.seconds[name] = round(time.monotonic() - began, 1)

    # -- processes

    def make(self) -> None:
        """What devices see, the first version, and its repository."""
        from edge.demo.updates.maker import first_version  # what it imports takes seconds, while others start

        there = self._scene = scene(self._devices, self._data)
        self._found.scene = there.name
        write_devices(there, self._folder / "scene")
        accuracy = first_version(there, self._folder)
        self._say(f"{there.name}: {len(there.cloud.y)} examples in the cloud, accuracy {accuracy:.3f} on them")

    def prepare(self) -> None:
        """The hub's tokens and settings, the loop's plan."""
        (self._folder / "repository").mkdir(parents=True, exist_ok=True)
        base, now = opened(str(self._folder / "hub.sqlite")), time.time()
        names = [name_of(number) for number in range(self._devices)]
        with base.transaction() as cursor:
            people = {name: tokens.add(cursor, name, "operator", now, None, {}) for name in ("loop", PERSON)}
            self._words = {name: tokens.add(cursor, name, "device", now, None, {}) for name in names}
        base.close()
        (self._folder / "loop.token").write_text(people["loop"])
        self._person = people[PERSON]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._url = f"http://127.0.0.1:{free.getsockname()[1]}"
        pace = self._pace
        _toml(self._folder / "hub.toml", {"hub": {
            "address": self._url.removeprefix("http://"), "database": "hub.sqlite", "repository": "repository",
            "interval": pace.interval, "watch": min(1.0, pace.interval), "rate": 1000.0, "visitors": 1e5,
            "telemetry": True,
        }})  # fmt: skip
        self._write_plan()
        self.client = Client(self._url, self._person)

    def _write_plan(self) -> None:
        pace = self._pace
        window = pace.drawn * self._devices * 3 // 4
        rollout = {"soak": pace.soak, "patience": pace.patience, "judge": {"unacceptable": 0.3}}
        _toml(self._folder / "round.toml", {
            "model": {"bundle": "trained.mslite"},
            "algorithm": {"name": "fedmomentum", "rate": 0.1, "server_rate": 1.0},
            "local": {"steps": pace.steps, "batch": 20},
            "rounds": {"count": pace.rounds, "minimum": max(1, self._devices * 9 // 10), "deadline": pace.limit / 3},
            "evaluation": {"every": pace.rounds, "steps": 0},
        })  # fmt: skip
        _toml(self._folder / "loop.toml", {
            "loop": {"name": LOOP, "application": APP, "folder": "loop", "approve": ["promote"], "every": 0.25},
            "hub": {"url": self._url, "token": "loop.token"},
            "repository": {"at": "repository", "keys": ["keys"], "version": "2.{cycle}"},
            "drift": {"examples": window, "every": 0.25, "reference": pace.reference * window,
                      "month": 0.25 * MONTH_WINDOWS},
            "schedule": {"rest": 0.0},
            "learn": {"config": "round.toml", "heartbeat": 5.0},
            "budget": {"figure": "accuracy_before", "least": 0.5, "loss": 0.0},
            "convert": {"source": SOURCE, "trainable": ["*"]},
            "canary": {**rollout, "steps": [max(10.0, 200.0 / self._devices)]},
            "rollout": {**rollout, "steps": [100.0]},
        })  # fmt: skip

    @contextlib.contextmanager
    def hub(self) -> Iterator[None]:
        """`msedge hub serve`."""
        with self._command(["hub", "serve", "--config", "hub.toml", "--folder", ".", "--json"]) as self._hub:
            yield

    @contextlib.contextmanager
    def loop(self) -> Iterator[None]:
        """`msedge hub loop run`."""
        with self._command(["hub", "loop", "run", "loop.toml", "--cycles", "1", "--json"]):
            yield

    @contextlib.contextmanager
    def _command(self, words: list[str]) -> Iterator[subprocess.Popen[str]]:
        with (self._folder / f"{words[1]}.log").open("a") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "edge.cli", *words], cwd=self._folder, stdout=subprocess.PIPE, stderr=log,
                text=True, env=environment(),
            )  # fmt: skip
        self._processes.append(process)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()

    @contextlib.contextmanager
    def crews(self, processes: int) -> Iterator[None]:
        """Processes of devices, which wait for their names."""
        try:
            self._crews = [Crew(self._folder / f"devices-{number}.log") for number in range(processes)]
            yield
        finally:
            for crew in self._crews:
                crew.close()

    def enrol(self) -> None:
        """Devices enrol and begin to check in, at a hub that serves."""
        assert self._hub.stdout is not None
        if not self._hub.stdout.readline():
            raise MsedgeError(f"the hub ended: {(self._folder / 'serve.log').read_text()[-1500:]}")
        names, processes = sorted(self._words), len(self._crews)
        words = {
            "folder": str(self._folder / "devices"), "scene": str(self._folder / "scene"), "url": self._url,
            "streams": dict(self._scene.streams), "drawn": self._pace.drawn, "every": self._pace.every,
            "root": str(self._folder / "repository" / "metadata" / "1.root.json"),
        }  # fmt: skip
        for number, crew in enumerate(self._crews):
            mine = names[number::processes]
            crew.say({**words, "names": mine, "tokens": [self._words[name] for name in mine]})
        count = sum(crew.heard()["enrolled"] for crew in self._crews)
        self._say(f"{count} devices in {processes} processes have enrolled")

    # -- what is asked

    def all(self, word: str) -> list[Any]:
        """The answers of all devices."""
        for crew in self._crews:
            crew.say({"ask": word})
        return [one for crew in self._crews for one in crew.heard()]

    def measured(self) -> list[Accuracy]:
        """The accuracy of each device that runs something."""
        return sorted(Accuracy(*one) for one in self.all("measure") if one is not None)

    def roll_out_first(self) -> None:
        """Version 1.0 to all devices."""
        plan = {"application": APP, "version": "1.0", "steps": [100.0], "soak": 0, "patience": self._pace.limit}
        self.client.json("POST", "/v1/rollouts", plan)
        self.until("version 1.0 on all devices", lambda: self.view.versions.get("1.0") == self._devices)

    def calm(self) -> None:
        """Until the reference is there, and some windows were compared with it."""
        self.until("windows", lambda: self.view.watching.get("windows", 0) >= self._pace.calm)
        if self.view.watching["alarm"]:
            self._found.false_alarms += 1

    def flip(self) -> None:
        """Flip the axis on a third of the devices."""
        self.all("hush")
        count = sum(self.all("change"))
        self._say(f"the axis is flipped on {count} of {self._devices} devices")
        self._found.changed = self.measured()
        self.look()
        self._found.windows = -int(self.view.watching["windows"])
        self.all("talk")

    def noticed(self) -> None:
        """Until the loop has begun its cycle."""
        self.until("noticed", lambda: self.view.watching.get("alarm") and self.view.loop.get("number") == 1)
        watching, found = self.view.watching, self._found
        found.windows += int(watching["windows"])
        plan = read_plan(self._folder / "loop.toml")
        assert plan.file.drift is not None
        found.examples, found.bound = found.windows * plan.file.drift.examples, watching["bound"]
        found.streams = list(self.view.loop["cause"].get("streams", ()))
        found.distance = max(one["distance"] for one in watching["streams"].values())
        late = windows_to_detect(found.distance, plan.file.drift.rule, len(watching["streams"]))
        found.promised = None if late is None else late * plan.file.drift.examples
        self.all("hush")
        self._say(self.view.loop["cause"]["text"])

    def approve(self) -> None:
        """A person lets the version go to all devices."""
        self.until("a gate", lambda: self.view.loop.get("status") == "waits")
        self._say(f"{PERSON} approves: {self.view.loop['step']}")
        self.client.json("POST", f"/v1/loops/{LOOP}/approve", {"step": self.view.loop["step"], "why": "the demo"})

    def everywhere(self) -> bool:
        """Whether all devices run the new version."""
        made = self.view.loop["results"].get("sign", {}).get("version")
        return self.view.loop["outcome"] != "finished" or self.view.versions.get(made) == self._devices

    # -- looking

    def until(self, what: str, holds: Callable[[], Any]) -> None:
        """Look until something holds. Raises MsedgeError when it takes too long, the loop fails, or a process ends."""
        end = time.monotonic() + self._pace.limit
        while True:
            self.look()
            if holds():
                return
            if self.view.loop.get("outcome") == "failed":
                raise MsedgeError(f"the loop failed: {self.view.loop['reason']}")
            ended = [one for one in self._processes if one.poll() not in (None, 0)]
            if ended or time.monotonic() > end:
                logs = "\n".join(
                    f"{name}: {(self._folder / name).read_text()[-1500:]}"
                    for name in ("serve.log", "loop.log") if (self._folder / name).exists()
                )  # fmt: skip
                raise MsedgeError(f"{'a process ended' if ended else f'{what}: it takes too long'}\n{logs}")
            time.sleep(0.25)

    def look(self) -> None:
        """Ask the hub how everything is, and show it."""
        fleet = self.client.json("GET", "/v1/fleet")["versions"].get(APP, {})
        loops = {one["name"]: one for one in self.client.json("GET", "/v1/loops")["loops"]}
        rollouts = self.client.json("GET", "/v1/rollouts")["rollouts"]
        plan = read_plan(self._folder / "loop.toml")
        watching = Watcher(plan, self.client).data()
        self.view = View(self._phase, fleet, watching, loops.get(LOOP, {}), rollouts)
        self._show(self.view)


def _toml(path: Path, tables: Mapping[str, Mapping[str, Any]]) -> None:
    """A file of sections, whose values are numbers, texts, lists of them or tables."""
    lines = []
    for section, table in tables.items():
        lines += [f"[{section}]", *(f"{key} = {_value(value)}" for key, value in table.items()), ""]
    path.write_text("\n".join(lines))


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_value(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)
