"""What an operator asks of a loop: a TOML file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta

from cloud.hub.errors import HubError
from cloud.hub.loop.cycle import STEPS
from cloud.hub.loop.drift import Rule
from cloud.hub.rollouts.plan import Judge
from federated.tables import Count, Fraction, NotNegative, Positive, Reader, Table
from lite_runtime.updates.release import may_name

__all__ = ["MONTH", "TEMPLATE", "Canary", "Plan", "read_plan", "rollout_of"]

_READER = Reader(HubError, "msedge hub loop init prints a template")
_Percent = Annotated[float, Meta(gt=0, le=100, description="percent, above 0")]
MONTH = 30.44 * 86_400.0


class _Table(Table, frozen=True):
    reader: ClassVar[Reader] = _READER


class Loop(_Table, frozen=True):
    """[loop]. name: of the loop at the hub. application, file: what it is about; file "": the release's only one.
    folder: where a cycle keeps its files. channel, candidates: of all devices, and of canaries. approve: steps before
    which a person is asked. attempts: of a step, before the cycle fails. every: seconds between two looks."""

    name: str
    application: str
    folder: str = "loop"
    file: str = ""
    channel: str = "stable"
    candidates: str = "candidate"
    approve: tuple[str, ...] = ()
    attempts: Count = 5
    every: Positive = 30.0


class Hub(_Table, frozen=True):
    """[hub]. token: a file with an operator's token. authority: of the hub's certificate; "": the system's."""

    url: str
    token: str
    authority: str = ""


class Repository(_Table, frozen=True):
    """[repository]. at: the folder, or s3://…. keys: folders with the keys of the application's team and of the hub.
    version: of the releases; {cycle} stands for the cycle's number."""

    at: str
    keys: tuple[str, ...]
    version: str
    passphrase: str = ""


class Drift(_Table, frozen=True):
    """[drift]: see `cloud.hub.loop.drift`. streams: patterns of the names that are watched. examples, every: a window
    has so many examples and takes so many seconds at least. alarms: false ones a month that are allowed. month: its
    seconds, fewer where time is simulated."""

    streams: tuple[str, ...] = ("*",)
    examples: Count = 1000
    every: Positive = 3600.0
    reference: Count = 10_000
    tolerance: Annotated[float, Meta(gt=0, lt=1, description="a distance above 0 and below 1")] = 0.1
    alarms: Positive = 1.0
    month: Positive = MONTH

    @property
    def rule(self) -> Rule:
        """For the test. A window takes `every` seconds at least, so that a month has so many at most."""
        return Rule(self.tolerance, max(1.0, self.month / self.every / self.alarms), self.reference)


class Learn(_Table, frozen=True):
    """[learn]. kind: a federated run on devices of the hub, or training in the cloud. config: its file. The rest is for
    federated runs. conditions: what devices must be (`cloud.hub.tasks.task.CONDITIONS`). cohort, devices: which ones,
    and how many at most. heartbeat: seconds between two signs of life."""

    config: str
    kind: Literal["federated", "train"] = "federated"
    conditions: tuple[Literal["idle", "charging", "unmetered"], ...] = ("idle", "charging", "unmetered")
    cohort: Mapping[str, tuple[str, ...]] = {}
    devices: Count = 1_000_000
    heartbeat: Positive = 10.0


class Budget(_Table, frozen=True):
    """[budget], of a figure of the run's last evaluation: of a federated run accuracy_before or accuracy_after
    (adapting); of training a metric of validation, such as accuracy. least: it must be at least this. loss: by how much
    it may be less than before a federated run, 1: any. group: whose figure it is there."""

    figure: str = "accuracy_before"
    least: Fraction = 0.0
    loss: Fraction = 1.0
    group: Literal["training", "held_out"] = "training"


class Convert(_Table, frozen=True):
    """[convert]. source: the ONNX file of which a federated run's bundle was made; training has its own. trainable,
    quantize, calibration: as of msedge convert."""

    source: str = ""
    trainable: tuple[str, ...] = ()
    quantize: str = "none"
    calibration: str = ""


class Canary(_Table, frozen=True):
    """[canary] and [rollout]: see `cloud.hub.rollouts.plan.Plan`."""

    steps: tuple[_Percent, ...] = (5.0,)
    cohort: Mapping[str, tuple[str, ...]] = {}
    soak: NotNegative = 3600.0
    patience: NotNegative = 86_400.0
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    judge: Judge = msgspec.field(default_factory=Judge)


class Rollout(Canary, frozen=True):
    """[rollout]."""

    steps: tuple[_Percent, ...] = (25.0, 100.0)


class Schedule(_Table, frozen=True):
    """[schedule]. every: days after the end of a cycle when the next begins without a cause; 0: never. rest: days after
    a cycle in which none begins."""

    every: NotNegative = 0.0
    rest: NotNegative = 1.0


class _File(_Table, frozen=True):
    loop: Loop
    hub: Hub
    repository: Repository
    learn: Learn
    drift: Drift | None = None
    schedule: Schedule = Schedule()
    budget: Budget = Budget()
    convert: Convert = Convert()
    canary: Canary = Canary()
    rollout: Rollout = Rollout()


class Plan(NamedTuple):
    """A whole file, and the folder that relative paths begin in."""

    file: _File
    base: Path

    @property
    def loop(self) -> Loop:
        """The section [loop]."""
        return self.file.loop

    def path(self, text: str) -> Path:
        """A path of the file."""
        return self.base / text

    def where(self, text: str) -> str:
        """A path of the file, or an address such as s3://…."""
        return text if "://" in text else str(self.path(text))

    def version(self, number: int) -> str:
        """The version that a cycle makes."""
        return self.file.repository.version.replace("{cycle}", str(number))


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """The plan in a file. Raises HubError, which names the key."""
    made = Plan(_READER.read(_File, _READER.file(path), f"{os.fspath(path)}: "), Path(path).resolve().parent)
    _check(made)
    return made


def _check(plan: Plan) -> None:
    file, loop = plan.file, plan.loop
    for key in ("name", "application", "channel", "candidates"):
        _READER.need(may_name(getattr(loop, key)), f"loop.{key}", "a name of a-z 0-9 . _ -", getattr(loop, key))
    apart = loop.channel != loop.candidates
    _READER.need(apart, "loop.candidates", "another channel than loop.channel", loop.candidates)
    for gate in loop.approve:
        _READER.need(gate in STEPS, "loop.approve", f"some of {', '.join(STEPS)}", gate)
    version = file.repository.version
    fits = "{cycle}" in version and may_name(plan.version(1))
    _READER.need(fits, "repository.version", "a name of a-z 0-9 . _ - with {cycle} in it", version)
    _READER.need(file.drift is not None or file.schedule.every > 0, "drift", "a section, or [schedule] with every > 0",
                 "neither: nothing would begin a cycle")  # fmt: skip
    federated = file.learn.kind == "federated"
    _READER.need(bool(file.convert.source) == federated, "convert.source",
                 "the ONNX file of the devices' bundle" if federated else "none: training exports its own",
                 file.convert.source)  # fmt: skip
    _READER.need(federated or file.budget.loss == 1, "budget.loss", "1 with training, which evaluates no start",
                 file.budget.loss)  # fmt: skip
    calibrated = file.convert.quantize in ("int8", "int16x8")
    _READER.need(bool(file.convert.calibration) == calibrated, "convert.calibration",
                 "data, as quantize needs it" if calibrated else f"none with quantize = {file.convert.quantize!r}",
                 file.convert.calibration)  # fmt: skip
    for name, one in (("canary", file.canary), ("rollout", file.rollout)):
        growing = all(low < high for low, high in zip(one.steps, one.steps[1:], strict=False))
        _READER.need(bool(one.steps) and growing, f"{name}.steps", "growing percents", one.steps)
        _READER.need(one.patience >= one.soak, f"{name}.patience", "at least soak", one.patience)


def rollout_of(plan: Plan, part: Canary, version: str, channel: str) -> dict[str, Any]:
    """A rollout's plan, as the hub reads it."""
    made: dict[str, Any] = msgspec.to_builtins(part)
    return {**made, "application": plan.loop.application, "version": version, "channel": channel}


TEMPLATE = """\
# A loop: msedge hub loop run loop.toml. Paths are relative to this file; lines that begin with # show defaults.

[loop]
name = "keywords"                # of the loop at the hub
application = "keywords"
# folder = "loop"                # what cycles learn and make
# file = ""                      # of the release, if it has several
# channel = "stable"
# candidates = "candidate"       # the canary's channel
approve = ["sign", "promote"]    # msedge hub approve; of learn judge convert sign canary promote rollout
# attempts = 5                   # of a step
# every = 30.0                   # seconds between two looks

[hub]
url = "https://hub.example.org"
token = "loop.token"             # of an operator: msedge hub token add loop --scope operator > loop.token
# authority = "ca.pem"

[repository]
at = "fleet"                     # a folder, or s3://…
keys = ["keys"]                  # with the keys of the application, and those that are online
version = "2.{cycle}"

[drift]                          # when what devices tell has changed (telemetry)
# streams = ["*"]                # names of sketches and class histograms
# examples = 1000                # of a window, at least
# every = 3600.0                 # seconds of a window, at least
# reference = 10000              # examples that later ones are compared with
# tolerance = 0.1                # the distance of a window that is usual
# alarms = 1.0                   # false ones a month, at most

[schedule]
# every = 0.0                    # days; 0: never
# rest = 1.0                     # days after a cycle without another

[learn]
config = "round.toml"            # msedge federate --init prints a template
# kind = "federated"             # or "train": msedge train --template
# conditions = ["idle", "charging", "unmetered"]
# cohort = {}                    # by attributes
# devices = 1000000
# heartbeat = 10.0

[budget]
# figure = "accuracy_before"     # or accuracy_after; of training: a metric of validation
# least = 0.0
# loss = 1.0                     # by how much it may be less than before the run
# group = "training"             # or "held_out"

[convert]
source = "model.onnx"            # of which the devices' bundle was made
trainable = ["*"]
# quantize = "none"
# calibration = ""

[canary]                         # keys as of a rollout's plan
# steps = [5.0]

[rollout]
# steps = [25.0, 100.0]
"""
