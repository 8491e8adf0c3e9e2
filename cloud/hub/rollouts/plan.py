"""What an operator asks for: which version goes to which devices, in which steps, and what stops it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import msgspec
from msgspec import Meta

from cloud.hub.errors import HubError
from federated.tables import Positive, Reader, Table
from lite_runtime.updates.release import may_name

__all__ = ["Judge", "Limit", "Plan", "read_plan"]

_Rate = Annotated[float, Meta(gt=0, lt=1, description="a share above 0 and below 1")]
_Percent = Annotated[float, Meta(gt=0, le=100, description="percent, above 0")]
_Seconds = Annotated[float, Meta(ge=0, le=1e8, description="seconds")]
_READER = Reader(HubError, "docs/updates.md has the keys of a rollout")


class Limit(Table, frozen=True):
    """How much worse a measure may become than it does on devices without the new version.

    margin: the difference that is tolerated: of scores as it is, of times as a ratio (0.2: a fifth longer). higher:
    whether higher values are better. Differences count up to four margins, so that no device alone matters much.
    """

    reader: ClassVar[Reader] = _READER
    margin: Positive
    higher: bool = True


class Judge(Table, frozen=True):
    """When a rollout stops itself.

    acceptable: the share of devices that may fail. unacceptable: the share that may not pass. alpha: the probability
    of stopping a good version, over all steps and measures together. beta: of passing a bad one, for each step.
    examples: a device's measure counts from this number of values on. measures: limits by name.
    """

    reader: ClassVar[Reader] = _READER
    acceptable: _Rate = 0.02
    unacceptable: _Rate = 0.2
    alpha: _Rate = 0.05
    beta: _Rate = 0.05
    examples: Annotated[int, Meta(ge=1, le=1 << 40)] = 20
    measures: Mapping[str, Limit] = msgspec.field(
        default_factory=lambda: {"latency_ms": Limit(0.5, higher=False), "confidence": Limit(0.05)}
    )

    def __post_init__(self) -> None:
        """Raises HubError."""
        super().__post_init__()
        _READER.need(self.acceptable < self.unacceptable, "judge.acceptable", "less than unacceptable", self.acceptable)


class Plan(Table, frozen=True):
    """One rollout. cohort: `cohorts.Cohort`. steps: percent of the cohort, growing; the first is the canary, and after
    the last the rollout is complete.

    soak: least seconds of a step. patience: seconds after which a step that is not decided is: it goes on if more
    speaks for the version than against, else it pauses. priority: of several rollouts that mean a device, the highest
    decides, then the newest. seed: of the devices' order; "": the rollout's id.
    """

    reader: ClassVar[Reader] = _READER
    application: str
    version: str
    channel: str = "stable"
    cohort: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    steps: tuple[_Percent, ...] = (1.0, 5.0, 25.0, 100.0)
    soak: _Seconds = 3600.0
    patience: _Seconds = 86_400.0
    priority: Annotated[int, Meta(ge=-1000, le=1000)] = 0
    seed: str = ""
    judge: Judge = msgspec.field(default_factory=Judge)

    def __post_init__(self) -> None:
        """Raises HubError."""
        super().__post_init__()
        for key in ("application", "version", "channel"):
            _READER.need(may_name(getattr(self, key)), key, "a name of a-z 0-9 . _ -", getattr(self, key))
        growing = all(one < two for one, two in zip(self.steps, self.steps[1:], strict=False))
        _READER.need(bool(self.steps) and growing and len(self.steps) <= 64, "steps", "growing percents", self.steps)
        _READER.need(len(self.cohort) <= 64, "cohort", "at most 64 attributes", len(self.cohort))
        _READER.need(self.patience >= self.soak, "patience", "at least soak", self.patience)


def read_plan(value: Any, where: str = "") -> Plan:
    """A plan from a table of TOML or JSON. Raises HubError, which names the key."""
    return _READER.read(Plan, value, where)
