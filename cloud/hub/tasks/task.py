"""A federated task, and which device that offers itself may take part: pure rules, without clock or socket."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta

from cloud.hub.errors import HubError
from cloud.hub.rollouts.cohorts import belongs
from federated.tables import Count, Reader, Table
from lite_runtime.updates.joining import Member, Offer
from lite_runtime.updates.release import may_name

__all__ = ["CONDITIONS", "Chosen", "Task", "choose", "read_task"]

_READER = Reader(HubError, "docs/updates.md has the keys of a task")
_Seconds = Annotated[float, Meta(gt=0, le=1e6, description="seconds, above 0")]
CONDITIONS: Mapping[str, str] = {
    "idle": "in use",
    "charging": "not charging",
    "unmetered": "on a network whose traffic costs",
}
"""What a task may ask of a device at the moment, and what a device is told that is otherwise."""


class Task(Table, frozen=True):
    """What a server of a federated run asks for.

    population: devices that offer themselves for this application. plan: the version of the federated messages. bundle:
    the digest of the bundle that devices train; "": any. cohort: by attributes, as of a rollout. conditions: of
    CONDITIONS, that must hold when a device joins. devices: the most that take part. heartbeat: seconds between two
    signs of life. lease: seconds after which the task ends if its server is silent. most: bytes of a reply.
    """

    reader: ClassVar[Reader] = _READER
    population: str
    plan: Annotated[int, Meta(ge=0, le=1 << 31)]
    bundle: str = ""
    cohort: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    conditions: tuple[Literal["idle", "charging", "unmetered"], ...] = ()
    devices: Count = 1_000_000
    heartbeat: _Seconds = 10.0
    lease: _Seconds = 120.0
    most: Annotated[int, Meta(ge=1, le=1 << 31)] = 1 << 28

    def __post_init__(self) -> None:
        """Raises HubError."""
        super().__post_init__()
        _READER.need(may_name(self.population), "population", "a name of a-z 0-9 . _ -", self.population)
        _READER.need(len(self.cohort) <= 64, "cohort", "at most 64 attributes", len(self.cohort))


class Chosen(NamedTuple):
    """The task for a device ("": none), which of its populations it is about, what it has for that; why none."""

    task: str
    population: str = ""
    member: Member = Member()
    why: str = ""


def choose(
    tasks: Mapping[str, Task], taken: Mapping[str, Collection[str]], device: str, offer: Offer,
    attributes: Mapping[str, str],
) -> Chosen:  # fmt: skip
    """The task that a device takes part in: one that has it already, else the one with the smallest share of the
    devices that it wants. taken: the devices of each task. attributes: what the offer says, and people have said."""
    reasons: list[str] = []
    free: list[tuple[float, str]] = []
    for name, task in tasks.items():
        if why := _against(task, taken[name], device, offer, attributes):
            reasons.append(why)
        elif device in taken[name]:
            return Chosen(name, task.population, offer.populations[task.population])
        else:
            free.append((len(taken[name]) / task.devices, name))
    if not free:
        return Chosen("", why=reasons[0] if reasons else "there is no task")
    name = min(free)[1]
    return Chosen(name, tasks[name].population, offer.populations[tasks[name].population])


def _against(
    task: Task, taken: Collection[str], device: str, offer: Offer, attributes: Mapping[str, str]
) -> str:  # fmt: skip
    """Why a device does not take part in a task, "" if it does."""
    member = offer.populations.get(task.population)
    if member is None or not belongs(attributes, task.cohort):
        return "there is no task"
    if task.plan not in offer.plans:
        return f"the task's messages are of version {task.plan}; update msedge"
    if task.bundle and member.bundle != task.bundle:
        return "the task trains another version of the bundle; install it first"
    holds = {"idle": offer.idle, "charging": offer.charging, "unmetered": not offer.metered}
    for condition in task.conditions:
        if not holds[condition]:
            return f"the device is {CONDITIONS[condition]}"
    if device not in taken and len(taken) >= task.devices:
        return "the task has enough devices"
    return ""


def read_task(value: Any, where: str = "") -> Task:
    """A task from a table of JSON. Raises HubError, which names the key."""
    return _READER.read(Task, value, where)
