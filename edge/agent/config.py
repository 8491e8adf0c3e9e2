"""The file that configures an agent, as typed values.

[agent]
folder = "/var/lib/msedge"
repository = "https://hub.example.org/repository"
root = "/etc/msedge/root.json"

[applications.keywords]
health = [{ address = "http://127.0.0.1:8000/health" }]
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, NamedTuple

from msgspec import Meta

from edge.agent.application import Personal, Settings
from edge.agent.checking.health import Address, Check, Fresh, Program, is_loopback
from edge.agent.checking.trying import Limits
from edge.agent.conditions import Conditions, Window
from edge.agent.errors import AgentError
from edge.agent.machine import COSTLY
from edge.agent.personal.keeping import KEEP
from edge.agent.update import Rules
from federated.tables import Count, NotNegative, Positive, Reader, Table, Whole
from lite_runtime.updates.release import may_name

__all__ = ["TEMPLATE", "Config", "read"]

READER = Reader(AgentError, "msedge agent --init prints a template")
Percent = Annotated[int, Meta(ge=0, le=100, description="a percentage from 0 to 100")]
_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", re.ASCII)


class _Table(Table, frozen=True):
    reader: ClassVar[Reader] = READER


class Device(_Table, frozen=True):
    """[agent]. repository: an address or a folder; "": that of the hub. hub: its address, for check-ins; "": channels
    say what runs. authority: a PEM file of the authorities of both addresses. every: seconds between two looks."""

    folder: str
    root: str
    repository: str = ""
    hub: str = ""
    authority: str = ""
    every: Annotated[float, Meta(ge=1, le=1e7)] = 3600.0
    costly: tuple[str, ...] = COSTLY
    attributes: Mapping[str, str] = {}


class Waiting(_Table, frozen=True):
    """[conditions]: see `edge.agent.conditions.Conditions`; window: such as "22:00-06:00"."""

    free: Whole = Conditions().free
    battery: Percent = 0
    metered: bool = False
    window: str = ""

    def made(self) -> Conditions:
        """Raises AgentError for a window that is none."""
        if not self.window:
            return Conditions(self.free, self.battery, self.metered)
        found = _CLOCK.fullmatch(self.window)
        READER.need(found is not None, "conditions.window", "times such as 22:00-06:00", self.window)
        assert found is not None
        begin, end = (60 * int(found[i]) + int(found[i + 1]) for i in (1, 3))
        return Conditions(self.free, self.battery, self.metered, Window(begin, end))


class Checks(_Table, frozen=True):
    """[checks], before the switch: see `edge.agent.checking.trying.Limits`."""

    seconds: Positive = Limits().seconds
    memory: Whole = 0
    reference: bool = True
    keys: tuple[str, ...] = ()


class OnTrial(_Table, frozen=True):
    """[trial], after the switch: see `edge.agent.update.Rules`; every: seconds between two health checks."""

    seconds: NotNegative = Rules().seconds
    successes: Count = Rules().successes
    failures: Count = Rules().failures
    limit: Positive = Rules().limit
    starts: Count = Rules().starts
    every: Positive = 10.0


class HealthCheck(_Table, frozen=True):
    """One check: a program, a file or an address. seconds: its limit; by default that of its kind."""

    program: tuple[str, ...] = ()
    file: str = ""
    address: str = ""
    seconds: Positive | None = None

    def made(self, where: str) -> Check:
        """Raises AgentError for none of the three, or more than one, or what cannot be checked."""
        given = [name for name in ("program", "file", "address") if getattr(self, name)]
        READER.need(len(given) == 1, where, "one of program, file and address", ", ".join(given) or "none")
        limit = {} if self.seconds is None else {"seconds": self.seconds}
        if self.program:
            _absolute(self.program[0], f"{where}.program")
            return Program(self.program, **limit)
        if self.file:
            return Fresh(_absolute(self.file, f"{where}.file"), **limit)
        expected = "an address of this machine, such as http://127.0.0.1:8000/health"
        READER.need(is_loopback(self.address), f"{where}.address", expected, self.address)
        return Address(self.address, **limit)


class Learned(_Table, frozen=True):
    """See `edge.agent.application.Personal`."""

    names: tuple[str, ...] = ()
    examples: str = ""
    epochs: Whole = 0
    keep: Count = KEEP


class App(_Table, frozen=True):
    """[applications.NAME]; its own conditions, checks and trial replace those of the file."""

    channel: str = "stable"
    health: tuple[HealthCheck, ...] = ()
    restart: tuple[str, ...] = ()
    personal: Learned = Learned()
    conditions: Waiting | None = None
    checks: Checks | None = None
    trial: OnTrial | None = None


class _File(_Table, frozen=True):
    agent: Device
    applications: Mapping[str, App]
    conditions: Waiting = Waiting()
    checks: Checks = Checks()
    trial: OnTrial = OnTrial()


class Config(NamedTuple):
    """A whole file, and the folder that relative paths begin in."""

    file: _File
    base: Path

    @property
    def agent(self) -> Device:
        """The section [agent]."""
        return self.file.agent

    def path(self, text: str) -> Path:
        """A path of the file."""
        return self.base / text

    def settings(self) -> dict[str, Settings]:
        """What each application is told. Raises AgentError."""
        source = self.agent.repository or self.agent.hub
        READER.need(bool(source), "agent", "a repository, or a hub that has one", "neither")
        found = self.file.applications
        READER.need(bool(found), "applications", "at least one, as [applications.NAME]", "none")
        return {name: self._settings(name, one) for name, one in found.items()}

    def _settings(self, name: str, app: App) -> Settings:
        where = f"applications.{name}"
        READER.need(may_name(name), "applications", "names of 1 to 64 of a-z 0-9 . _ -", name)
        READER.need(may_name(app.channel), f"{where}.channel", "a name of 1 to 64 of a-z 0-9 . _ -", app.channel)
        if app.restart:
            _absolute(app.restart[0], f"{where}.restart")
        waiting, checks = app.conditions or self.file.conditions, app.checks or self.file.checks
        trial, learned = app.trial or self.file.trial, app.personal
        return Settings(
            channel=app.channel,
            health=tuple(one.made(f"{where}.health[{number}]") for number, one in enumerate(app.health)),
            every=trial.every,
            restart=app.restart,
            rules=Rules(trial.seconds, trial.successes, trial.failures, trial.limit, trial.starts),
            conditions=waiting.made(),
            limits=Limits(
                checks.seconds, checks.memory, checks.reference, tuple(str(self.path(key)) for key in checks.keys)
            ),
            personal=Personal(
                learned.names,
                str(self.path(learned.examples)) if learned.examples else "",
                learned.epochs,
                learned.keep,
            ),
        )  # fmt: skip


def _absolute(path: str, where: str) -> str:
    READER.need(os.path.isabs(path), where, "an absolute path", path)
    return path


def read(path: str | os.PathLike[str]) -> Config:
    """The configuration in a file. Raises AgentError, naming the key."""
    made = Config(READER.read(_File, READER.file(path), f"{os.fspath(path)}: "), Path(path).resolve().parent)
    made.settings()
    return made


TEMPLATE = """\
# An agent: msedge agent run agent.toml. Sizes are in bytes, times in seconds. Paths are relative to this file.

[agent]
folder = "/var/lib/msedge"                        # all that the agent keeps
repository = "https://hub.example.org/repository" # or a folder; default: that of the hub
root = "root.json"                                # the repository's first root, given to the device once
# hub = "https://hub.example.org"                 # says what runs (msedge agent enrol); default: channels do
# authority = "ca.pem"                            # of their certificates; default: the system's
# every = 3600                                    # between two looks
# costly = ["wwan*", "ppp*"]                      # interfaces whose traffic costs
# attributes = { site = "lab" }                   # by which the hub chooses devices

[conditions]                                      # when an update may go on
# free = 16777216                                 # that stay free on the disk
# battery = 30                                    # percent, unless it is charging
# metered = false                                 # download where traffic costs
# window = "02:00-05:00"                          # local time of switches

[checks]                                          # before the switch
# seconds = 120                                   # for the test of one bundle
# memory = 0                                      # 0: three quarters of what is free
# reference = true                                # also run the golden sample by the NumPy reference
# keys = ["release.pub"]                          # bundles must be signed by one of these

[trial]                                           # after the switch
# seconds = 60                                    # it has passed after these, and
# successes = 3                                   # so many health checks in sequence
# failures = 3                                    # in sequence end it
# every = 10                                      # between two checks

[applications.keywords]
channel = "stable"
# restart = ["/usr/bin/systemctl", "restart", "keywords"]
# health = [{ program = ["/usr/bin/keywords", "--check"], seconds = 5 }, { file = "/run/keywords/alive", seconds = 60 },
#           { address = "http://127.0.0.1:8000/health" }]
# personal = { names = ["head.*"], examples = "/var/lib/keywords/kept.npz", epochs = 2 }
"""
