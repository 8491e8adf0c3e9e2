"""A run of questions as a TOML file: [data], [rounds], [privacy], [report], and [[analytics]] for each statistic."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from federated.analytics.base import READ
from federated.analytics.counts import Counts, Ranged
from federated.analytics.prefixes import Prefixes
from federated.errors import FederatedError
from federated.privacy.accountant import noise_for
from federated.privacy.secure import lowest_threshold
from federated.tables import Count, Fraction, NotNegative, Number, Positive, Reader, Seed, Table, Whole

__all__ = ["Analysis", "Asking", "Examples", "Outcome", "Private", "Statistic", "parse"]


class _Section(Table, frozen=True):
    reader: ClassVar[Reader] = READ


class Examples(_Section, frozen=True):
    """The examples of simulated devices, as for training; an .npz may hold labels only."""

    shards: str = ""
    labels: str = "labels"
    device: str = "device"


class Asking(_Section, frozen=True):
    """All devices that are present are asked. `minimum`: how many must be; `quorum`: the share that must answer;
    `attempts`: how often a question is asked; `deadline`: seconds for an answer; `seed`: which examples of a device
    answer if not all count."""

    minimum: Count = 1
    quorum: Annotated[float, Meta(gt=0, le=1)] = 0.5
    attempts: Count = 3
    deadline: Positive = 600.0
    seed: Seed = 0


class Private(_Section, frozen=True):
    """Noise on every sum, as a multiple of what one device can change; `epsilon` is the cost of the whole run."""

    noise: Literal["none", "central", "local"] = "none"
    multiplier: NotNegative = 0.0
    epsilon: NotNegative = 0.0
    delta: Annotated[float, Meta(gt=0, lt=1, description="a number in (0, 1), less than 1 / devices")] = 1e-5
    secure: bool = False
    threshold: Annotated[float, Meta(gt=0.5, le=1, description="a share above 0.5, at most 1")] = 0.6
    model: Literal["malicious", "honest-but-curious"] = "malicious"

    def __post_init__(self) -> None:
        super().__post_init__()
        given = (self.multiplier > 0) + (self.epsilon > 0)
        READ.need(given == (self.noise != "none"), "privacy", 'one of multiplier and epsilon with noise, none without',
                  f"multiplier {self.multiplier:g}, epsilon {self.epsilon:g}, noise {self.noise}")  # fmt: skip

    def multiplier_for(self, questions: int) -> float:
        """The noise multiplier of each of so many questions."""
        if self.noise == "none":
            return 0.0
        return self.multiplier or noise_for(self.epsilon, self.delta, 1.0, questions)

    def stay(self, devices: int) -> int:
        """How many of a secure sum's devices must stay until its end."""
        lowest = lowest_threshold(devices, malicious=self.model == "malicious")
        return max(lowest, math.ceil(self.threshold * devices - 1e-9))


class Outcome(_Section, frozen=True):
    """The file with the results; "" for none."""

    json: str = ""


class Statistic(_Section, frozen=True):
    """One statistic of a feature. Keys that the kind does not use must not be set."""

    kind: Literal["mean", "histogram", "quantiles", "heavy_hitters"]
    feature: str
    name: str = ""
    column: Whole = 0
    weight: Literal["devices", "examples"] = "devices"
    most: Whole = 0
    low: Number | None = None
    high: Number | None = None
    bins: Count | None = None
    at: tuple[Fraction, ...] | None = None
    longest: Count | None = None
    threshold: NotNegative | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        used = USES[self.kind]
        for key in ("low", "high", "bins", "at", "longest", "threshold"):
            if key not in used and getattr(self, key) is not None:
                raise FederatedError(f"analytics.{key}: has no effect on {self.kind}; omit it")
        for key in ("low", "high"):
            READ.need(key not in used or getattr(self, key) is not None, f"analytics.{key}", "a number", None)
        READ.need(not self.most or self.weight == "examples", "analytics.most", 'none without weight = "examples"',
                  self.most)  # fmt: skip

    @property
    def rounds(self) -> int:
        """The most questions that it takes."""
        return (self.longest or 12) if self.kind == "heavy_hitters" else 1

    def fields(self) -> dict[str, Any]:
        """The fields of its question that all kinds have."""
        return {key: getattr(self, key) for key in ("feature", "column", "weight", "most")}

    def ranged(self) -> dict[str, Any]:
        """The same with the range."""
        return {**self.fields(), "low": self.low, "high": self.high}


USES: Mapping[str, tuple[str, ...]] = {
    "mean": ("low", "high"),
    "histogram": ("low", "high", "bins"),
    "quantiles": ("low", "high", "bins", "at"),
    "heavy_hitters": ("longest", "threshold"),
}
"""The keys of each kind, besides those of all kinds."""


class _File(_Section, frozen=True):
    analytics: tuple[Statistic, ...]
    data: Examples = Examples()
    rounds: Asking = Asking()
    privacy: Private = Private()
    report: Outcome = Outcome()


class Analysis(_File, frozen=True, kw_only=True):
    """A run of questions. `folder`: the base of relative paths."""

    folder: Path = Path()

    def __post_init__(self) -> None:
        """Does nothing: its parts were checked when they were created."""

    @property
    def multiplier(self) -> float:
        """The noise multiplier of each question."""
        return self.privacy.multiplier_for(sum(each.rounds for each in self.analytics))

    def path(self, text: str) -> Path:
        """A path in the file, resolved."""
        return self.folder / text


def parse(words: Mapping[str, Any], folder: Path = Path()) -> Analysis:
    """The run that a parsed file describes. Raises FederatedError, naming the key."""
    file = READ.read(_File, words)
    READ.need(len(file.analytics) > 0, "analytics", "at least one statistic", [])
    for each in file.analytics:
        bounded = each.weight == "devices" or each.most > 0
        READ.need(bounded or file.privacy.noise == "none", "analytics.most",
                  'a limit with noise and weight = "examples": noise covers what one device can change', 0)  # fmt: skip
        if each.kind == "heavy_hitters":
            Prefixes(**each.fields(), longest=each.longest or 12)
        else:
            Ranged.__post_init__(Counts(**each.ranged(), bins=each.bins or 1024, dyadic=each.kind == "quantiles"))
    return Analysis(**msgspec.structs.asdict(file), folder=folder)
