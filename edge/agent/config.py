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
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.agent.application import Personal, Settings
from edge.agent.checking.health import Address, Check, Fresh, Program, is_loopback
from edge.agent.checking.trying import Limits
from edge.agent.command.tables import Take, file, flag, listed, named, real, record, table, text, whole, wrong
from edge.agent.conditions import Conditions, Window
from edge.agent.errors import AgentError
from edge.agent.machine import COSTLY, Facts
from edge.agent.update import Rules
from lite_runtime.frozen import NamedTuple
from lite_runtime.updates.release import may_name

if TYPE_CHECKING:
    from edge.agent.learning import populations

__all__ = ["TEMPLATE", "Config", "Device", "read"]

_CLOCK = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
CONSENT = ("none", "backup", "serve")
"""To keep personal versions at the server: see `federated.client.device.Device`."""
_NAMES = "names of 1 to 64 of a-z 0-9 . _ -"


class Device(NamedTuple):
    """[agent]. repository: an address or a folder; "": that of the hub. hub: its address, for check-ins; "": channels
    say what runs. authority: a PEM file of the authorities of both addresses. every: seconds between two looks."""

    folder: str
    root: str
    repository: str = ""
    hub: str = ""
    authority: str = ""
    every: float = 3600.0
    costly: tuple[str, ...] = COSTLY
    attributes: Mapping[str, str] = {}


class Learns(NamedTuple):
    """[applications.NAME.learning]: see `edge.agent.learning.populations.Settings`. idle, charging, metered: the
    owner's own conditions; a task may have more."""

    examples: str
    file: str = ""
    labels: str = "labels"
    consent: str = "none"
    demands: Mapping[str, Any] = {}
    idle: bool = True
    charging: bool = True
    metered: bool = False

    def holds(self, facts: Facts) -> bool:
        """Whether the owner lets the device learn now. What a system does not say counts as met."""
        idle, charging = facts.idle is not False or not self.idle, facts.charging is not False or not self.charging
        return idle and charging and (self.metered or not facts.metered)


class Config(NamedTuple):
    """A whole file. base: the folder that relative paths begin in. applications: what each is told. learns: those of
    them that take part in federated tasks of the hub."""

    agent: Device
    applications: Mapping[str, Settings]
    base: Path
    learns: Mapping[str, Learns] = {}

    def path(self, text: str) -> Path:
        """A path of the file."""
        return self.base / text

    def settings(self) -> dict[str, Settings]:
        """What each application is told."""
        return dict(self.applications)

    def learning(self, facts: Facts) -> dict[str, populations.Settings]:
        """The applications that learn now: what holds on the machine is what their owner wants."""
        from edge.agent.learning import populations
        from federated.client.demands import Demands

        return {
            name: populations.Settings(
                str(self.path(one.examples)), one.file, one.labels, one.consent, Demands.of(one.demands)
            )
            for name, one in self.learns.items()
            if one.holds(facts)
        }


# -- what a file says --------------------------------------------------------------------------------------------------


def _window(value: Any, key: str) -> Window | None:
    found = _CLOCK.fullmatch(value) if type(value) is str else None
    if found is None:
        if value == "":
            return None
        wrong(key, "times such as 22:00-06:00", value)
    begin, end = (60 * int(found[i]) + int(found[i + 1]) for i in (1, 3))
    return Window(begin, end)


def _absolute(value: Any, key: str) -> str:
    if type(value) is not str or not os.path.isabs(value):
        wrong(key, "an absolute path", value)
    return value


def _program(value: Any, key: str) -> tuple[str, ...]:
    """Words, of which the first is an absolute path; () for none."""
    found: tuple[str, ...] = listed(text())(value, key)
    if found:
        _absolute(found[0], key)
    return found


def _address(value: Any, key: str) -> str:
    if type(value) is not str or not is_loopback(value):
        wrong(key, "an address of this machine, such as http://127.0.0.1:8000/health", value)
    return value


_KINDS: Mapping[str, tuple[Take, type[Program] | type[Fresh] | type[Address]]] = {
    "program": (_program, Program), "file": (_absolute, Fresh), "address": (_address, Address),
}  # fmt: skip
"""By the key of a health check: how it is read, and what it makes. seconds: its limit; by default that of its kind."""


def _health(value: Any, key: str) -> Check:
    fields = {"seconds": real(0, above=True), **{name: take for name, (take, _) in _KINDS.items()}}
    found = table(value, key, fields, dict.fromkeys(fields))
    kinds = [name for name in _KINDS if found.get(name)]
    if len(kinds) != 1:
        wrong(key, "one of program, file and address", ", ".join(kinds) or "none")
    made: Check = _KINDS[kinds[0]][1](found[kinds[0]], **{k: v for k, v in found.items() if k == "seconds"})
    return made


_CONDITIONS = record(
    Conditions, free=whole(0), battery=whole(0, 100, "a percentage from 0 to 100"), metered=flag, window=_window
)
_POSITIVE, _NOT_NEGATIVE, _COUNT = real(0, above=True), real(0), whole(1)
_RULES = {
    "seconds": _NOT_NEGATIVE, "successes": _COUNT, "failures": _COUNT, "limit": _POSITIVE, "starts": _COUNT,
}  # fmt: skip


def _trial(value: Any, key: str) -> tuple[Rules, float]:
    """After the switch; every: seconds between two health checks."""
    found = table(value, key, {**_RULES, "every": _POSITIVE}, {**Rules()._asdict(), "every": 10.0})
    every = found.pop("every", 10.0)
    return Rules(**found), every


def _checks(value: Any, key: str, base: Path) -> Limits:
    """Before the switch."""
    take = record(Limits, seconds=_POSITIVE, memory=whole(0), reference=flag, keys=listed(text()))
    found: Limits = take(value, key)
    return found._replace(keys=tuple(str(base / name) for name in found.keys))


def _personal(value: Any, key: str, base: Path) -> Personal:
    take = record(Personal, names=listed(text()), examples=text(), epochs=whole(0), keep=_COUNT)
    found: Personal = take(value, key)
    return found._replace(examples=str(base / found.examples) if found.examples else "")


def _demands(value: Any, key: str) -> dict[str, Any]:
    """Of the owner: see `federated.client.demands.Demands`, which says what they may be."""
    try:
        from federated.client.demands import Demands
    except ModuleNotFoundError as missing:
        raise AgentError(
            f"{key.rpartition('.')[0]}: expected the package {missing.name}, which federated learning needs, got none; "
            f"pip install {missing.name}"
        ) from None
    from federated.errors import FederatedError

    try:
        Demands.reader.read(Demands, value, key)
    except FederatedError as problem:
        raise AgentError(str(problem)) from None
    return dict(value)


_LEARNING = record(
    Learns, examples=text("a path", bool), file=text(), labels=text(),
    consent=text(f"one of {', '.join(CONSENT)}", CONSENT.__contains__), demands=_demands, idle=flag, charging=flag,
    metered=flag,
)  # fmt: skip


def _learning(value: Any, key: str) -> Learns:
    made: Learns = _LEARNING({"demands": {}, **value} if type(value) is dict else value, key)
    return made


_DEVICE = record(
    Device, folder=text(), root=text(), repository=text(), hub=text(), authority=text(), every=real(1, high=1e7),
    costly=listed(text()),
    attributes=named(text("a text of at most 256 characters", lambda word: len(word) <= 256), _NAMES, may_name, 64),
)  # fmt: skip


def _application(value: Any, key: str, base: Path, shared: Mapping[str, Any]) -> tuple[Settings, Learns | None]:
    """[applications.NAME]; its own conditions, checks and trial replace those of the file."""
    parts = _parts(base)
    own: dict[str, Take] = {
        "channel": text(f"a name: {_NAMES}", may_name), "health": listed(_health, "a list of checks"),
        "restart": _program, "personal": partial(_personal, base=base),
    }  # fmt: skip
    fields = {**own, **parts, "learning": _learning}
    found = table(value, key, fields, dict.fromkeys(fields))
    rules, every = found.get("trial", shared["trial"])
    made = Settings(
        rules=rules, every=every, conditions=found.get("conditions", shared["conditions"]),
        limits=found.get("checks", shared["checks"]), **{name: found[name] for name in own if name in found},
    )  # fmt: skip
    return made, found.get("learning")


def _parts(base: Path) -> dict[str, Take]:
    """Sections that a file has for all applications, and one may have of its own."""
    return {"conditions": _CONDITIONS, "checks": partial(_checks, base=base), "trial": _trial}


def read(path: str | os.PathLike[str]) -> Config:
    """The configuration in a file. Raises AgentError, naming the key."""
    where, base = f"{os.fspath(path)}: ", Path(path).resolve().parent
    parts = _parts(base)
    fields: dict[str, Take] = {"agent": _DEVICE, "applications": lambda value, key: value, **parts}
    found = table(file(path), where, fields, dict.fromkeys(parts))
    shared = {name: found[name] if name in found else take({}, name) for name, take in parts.items()}
    of = partial(_application, base=base, shared=shared)
    applications = named(of, _NAMES, may_name)(found["applications"], f"{where}applications")
    agent: Device = found["agent"]
    if not agent.repository and not agent.hub:
        wrong(f"{where}agent", "a repository, or a hub that has one", "neither")
    if not applications:
        wrong(f"{where}applications", "at least one, as [applications.NAME]", "none")
    learns = {name: one for name, (_, one) in applications.items() if one is not None}
    return Config(agent, {name: one for name, (one, _) in applications.items()}, base, learns)


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
# learning = { examples = "/var/lib/keywords/kept.npz" }   # with labels: takes part in federated tasks of the hub
#                                                 # idle = true, charging = true, metered = false, consent = "none",
#                                                 # demands = { secure_only = true }, labels = "labels", file = ""
"""
