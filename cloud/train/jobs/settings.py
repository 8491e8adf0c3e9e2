"""Tables of a run's file about how it trains: the rate's course, groups, heads, early stopping, freezing."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal

import msgspec

from cloud.train.jobs.sections import Section, need
from federated.tables import Count, Fraction, NotNegative, Positive, Share, Whole

__all__ = ["Freezing", "Group", "Head", "Loss", "Plateau", "Schedule", "Stopping", "only"]

Optimizer = Literal["adam", "adamw", "sgd", "momentum", "lion", "muon", "thor"]
ClassWeights = tuple[NotNegative, ...] | Literal["balanced"]


class Schedule(Section, frozen=True):
    """What train.schedule may be told; each takes some of the keys (see `cloud.train.stepping.schedules.Shape`)."""

    end: Fraction = 0.0
    """The last rate, as a share of the highest: for linear, cosine, polynomial, exponential, cosine_restarts,
    one_cycle."""
    power: Positive = 2.0
    """For polynomial."""
    factor: Positive = 0.1
    """For step: multiplies the rate at each of `at`, shares of the steps after the warm-up."""
    at: tuple[Share, ...] = (0.5, 0.75)
    cycles: Count = 4
    """For cosine_restarts: how often the rate falls, each time `stretch` times as long."""
    stretch: Positive = 1.0
    rise: Share = 0.3
    """For one_cycle: the share of the steps in which the rate rises, from `start` of the highest."""
    start: Fraction = 0.04
    floor: Fraction = 0.0
    """The share of the rate at which a warm-up begins."""


class Group(Section, frozen=True):
    """Parameters with a rate and an optimiser of their own."""

    match: tuple[str, ...]
    """Glob patterns of their names."""
    rate: NotNegative = 1.0
    """Times train.rate."""
    optimizer: Literal["", "adam", "adamw", "sgd", "momentum", "lion", "muon", "thor"] = ""
    """"": as train.optimizer."""
    weight_decay: float = -1.0
    """Below 0: as train.weight_decay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        need(bool(self.match), "train.groups.match", "at least one pattern", list(self.match))


class Loss(Section, frozen=True):
    """A loss by name and what it may be told."""

    loss: str = "softmax_cross_entropy"
    smoothing: Share = 0.0
    """The share of a label's weight that is spread evenly over all classes."""
    class_weights: ClassWeights = ()
    """By which a label's loss is multiplied; "balanced": as in the training data, n / (classes * count)."""
    focus: NotNegative = 0.0
    """Gamma of the focal loss."""

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = not (self.smoothing or self.class_weights or self.focus)
        fits = plain or self.loss in ("softmax_cross_entropy", "sigmoid_cross_entropy")
        need(fits, "train.smoothing, class_weights and focus", "none but with a cross-entropy", self.loss)


class Head(Loss, frozen=True):
    """The loss of one of several outputs."""

    weight: NotNegative = 1.0
    output: str = ""
    labels: str = ""
    """"": those with the head's name."""
    metrics: tuple[str, ...] = ()


class Stopping(Section, frozen=True):
    """Early stopping, by validation: see `EarlyStopping`. `patience`: evaluations; 0: none."""

    patience: Whole = 0
    min_delta: NotNegative = 0.0
    metric: str = "loss"
    mode: Literal["", "min", "max"] = ""
    restore: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        only(self, "stopping", () if not self.patience else self.__struct_fields__, "without patience")


class Plateau(Section, frozen=True):
    """A lower rate, by validation: see `Plateau` of `cloud.train`. `patience`: evaluations; 0: none."""

    patience: Whole = 0
    factor: Share = 0.5
    min_delta: NotNegative = 0.0
    metric: str = "loss"
    mode: Literal["", "min", "max"] = ""
    cooldown: Whole = 0
    least: Fraction = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        need(self.factor > 0, "plateau.factor", "a share above 0", self.factor)
        only(self, "plateau", () if not self.patience else self.__struct_fields__, "without patience")


_OF_KIND: Mapping[str, tuple[str, ...]] = {
    "": (), "gradual": ("first", "every", "layers"), "progressive": ("share", "every", "batches", "layers")
}  # fmt: skip


class Freezing(Section, frozen=True):
    """Layers that thaw from the back ("gradual") or freeze from the front ("progressive") as the run goes on."""

    kind: Literal["", "gradual", "progressive"] = ""
    first: Count = 1
    """gradual: layers that are trained at first."""
    every: Count = 1
    """Epochs between two layers, or two decisions."""
    share: Share = 0.33
    """progressive: the most of the active layers that are frozen at once."""
    batches: Count = 4
    """progressive: batches whose gradient decides."""
    layers: tuple[str, ...] = ()
    """Glob patterns of layers, from the front; []: by the names of parameters."""

    def __post_init__(self) -> None:
        super().__post_init__()
        need(self.share > 0, "freezing.share", "a share above 0", self.share)
        only(self, "freezing", ("kind", *_OF_KIND[self.kind]), f"with kind = {self.kind!r}, which does not use it")


def only(table: msgspec.Struct, where: str, used: Collection[str], why: str) -> None:
    """Raise TrainError for a key that was set but is not used, and say `why`."""
    for field in msgspec.structs.fields(table):
        value = getattr(table, field.name)
        need(field.name in used or value == field.default, f"{where}.{field.name}", f"{field.default!r} {why}", value)
