"""What a task asks of a network: a class, a number, or the next values of a series.

A goal knows what stands before and behind the layers, so that a bundle reads and gives the user's own units; the loss;
and one figure, 1 - error / scale, of which larger is better and 1 is perfect. For classes the error is the share of
wrong answers: the figure is the accuracy. For numbers it is the squared error, and the scale that of the mean: R². For
forecasts the scale is the squared error of the naive forecast: the skill (Murphy, "Skill scores based on the mean
square error", Monthly Weather Review, 1988).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any, ClassVar

import jax
import numpy as np
import onnx_ir as ir
import optax

from cloud.zoo.build import BATCH, Builder
from lite_runtime.graph import Array

__all__ = ["CLASSES", "ENDS", "Classes", "Columns", "Forecast", "Goal", "Values", "told"]

ENDS = ("enter.*", "leave.*")
"""Globs of the nodes before and behind the layers, which are never quantised: they are in the user's units."""
_FARTHEST = 6.0
"""Spreads from the mean at which columns are cut off: what is farther would stretch the integers' range for all."""

Part = tuple[Array, Array]


@dataclass(frozen=True)
class Columns:
    """The training part's mean and spread of each column of a table, by which the graph standardises them."""

    mean: tuple[float, ...]
    spread: tuple[float, ...]

    def standardised(self, b: Builder, x: ir.Value) -> ir.Value:
        """[batch, columns], cut off far from the mean."""
        x = b.op("Sub", x, b.fixed("enter.mean", [self.mean]), name="enter.centred")
        x = b.op("Mul", x, b.fixed("enter.scale", 1 / np.array([self.spread])), name="enter.scaled")
        ends = (b.fixed(f"enter.{name}", end) for name, end in (("least", -_FARTHEST), ("most", _FARTHEST)))
        return b.op("Clip", x, *ends, name="enter.cut")


class Goal(ABC):
    """`figure`: the name of the figure; `output`: of the graph's output."""

    figure: ClassVar[str]
    output: ClassVar[str]

    def enter(self, b: Builder, x: ir.Value) -> ir.Value:
        """What the layers read, of the input."""
        return x

    @abstractmethod
    def leave(self, b: Builder, y: ir.Value, x: ir.Value) -> ir.Value:
        """The output, of what the last layer gives [batch, outputs] and of the input."""

    @abstractmethod
    def aims(self, y: Any, outputs: int) -> Any:
        """What a network is to answer for labels, in the form of its output."""

    @abstractmethod
    def taught(self, answers: Any) -> Any:
        """What others learn from a network that gives these answers."""

    @abstractmethod
    def loss(self, answers: Any, aims: Any) -> Any:
        """One loss an example [n], of outputs and `aims`."""

    @property
    def trained_by(self) -> str | Callable[[Any, Any], Any]:
        """The loss of outputs and labels, as the trainer takes it."""
        return self.loss

    @abstractmethod
    def errors(self, answers: Any, y: Any) -> Any:
        """One error an example [n]."""

    @abstractmethod
    def scale(self, part: Part) -> float:
        """The mean error on a part of what the figure compares with."""

    def value(self, answers: Array, part: Part) -> float:
        """The figure of answers to a part."""
        return 1 - float(np.mean(self.errors(answers, part[1]))) / self.scale(part)

    def facts(self, value: float, part: Part) -> dict[str, float]:
        """What else a figure says, by name."""
        return {}


@dataclass(frozen=True)
class Classes(Goal):
    """Logits [batch, classes] for labels (n,) int32."""

    figure = "accuracy"
    output = "logits"

    def leave(self, b: Builder, y: ir.Value, x: ir.Value) -> ir.Value:
        """See `Goal`."""
        return y

    def aims(self, y: Any, outputs: int) -> Any:
        """See `Goal`."""
        return jax.nn.one_hot(y, outputs)

    def taught(self, answers: Any) -> Any:
        """See `Goal`."""
        return jax.nn.softmax(answers)

    def loss(self, answers: Any, aims: Any) -> Any:
        """See `Goal`."""
        return optax.softmax_cross_entropy(answers, aims)

    @property
    def trained_by(self) -> str:
        """See `Goal`."""
        return "softmax_cross_entropy"

    def errors(self, answers: Any, y: Any) -> Any:
        """See `Goal`."""
        return answers.argmax(-1) != y

    def scale(self, part: Part) -> float:
        """See `Goal`."""
        return 1.0


CLASSES = Classes()


class _Squared(Goal):
    """Goals whose loss and error are the squared difference, in spreads of the training part."""

    def aims(self, y: Any, outputs: int) -> Any:
        """See `Goal`."""
        return y

    def taught(self, answers: Any) -> Any:
        """See `Goal`."""
        return answers

    def loss(self, answers: Any, aims: Any) -> Any:
        """See `Goal`."""
        return self.errors(answers, aims)


@dataclass(frozen=True)
class Values(_Squared):
    """A number [batch] for labels (n,) float32, of which the training part has this mean and spread."""

    mean: float
    spread: float
    figure = "R²"
    output = "prediction"

    def leave(self, b: Builder, y: ir.Value, x: ir.Value) -> ir.Value:
        """See `Goal`."""
        y = b.op("Mul", y, b.fixed("leave.spread", self.spread), name="leave.scaled")
        y = b.op("Add", y, b.fixed("leave.mean", self.mean), name="leave.moved")
        return b.op("Squeeze", y, b.constant("leave.axes", [1]), name="leave.column", shape=(BATCH,))

    def errors(self, answers: Any, y: Any) -> Any:
        """See `Goal`."""
        return ((answers - y) / self.spread) ** 2

    def scale(self, part: Part) -> float:
        """See `Goal`."""
        y = part[1].astype(np.float64)
        return float(self.errors(y.mean(), y).mean())

    def facts(self, value: float, part: Part) -> dict[str, float]:
        """See `Goal`."""
        return {"rmse": sqrt((1 - value) * self.scale(part)) * self.spread}


@dataclass(frozen=True)
class Forecast(_Squared):
    """The next values [batch, channels, horizon] of series x [batch, channels, 1, window], each in spreads of its
    channel. Layers read differences from the last value and give differences from it, so that a level never seen before
    is no matter (NLinear: Zeng et al., "Are Transformers Effective for Time Series Forecasting?", AAAI 2023).
    `repeated`: how many last values the naive forecast repeats: 1, or a season."""

    horizon: int
    spread: tuple[float, ...]
    repeated: int = 1
    figure = "skill"
    output = "forecast"

    def enter(self, b: Builder, x: ir.Value) -> ir.Value:
        """See `Goal`."""
        last = self._last(b, x, "enter.last")
        x = b.op("Sub", x, last, name="enter.from_last")
        return b.op("Mul", x, b.fixed("enter.scale", 1 / self._spreads[..., None]), name="enter.scaled")

    def leave(self, b: Builder, y: ir.Value, x: ir.Value) -> ir.Value:
        """See `Goal`."""
        channels = len(self.spread)
        y = b.reshape(y, (channels, self.horizon), name="leave.channels")
        y = b.op("Mul", y, b.fixed("leave.spread", self._spreads), name="leave.scaled")
        last = b.reshape(self._last(b, x, "leave.last"), (channels, 1), name="leave.last_of_each")
        return b.op("Add", y, last, name="leave.from_last")

    def _last(self, b: Builder, x: ir.Value, name: str) -> ir.Value:
        ends = [b.constant(f"{name}.{end}", [at]) for end, at in (("begin", -1), ("end", 1 << 62), ("axis", 3))]
        return b.op("Slice", x, *ends, name=name, shape=(BATCH, len(self.spread), 1, 1))

    @property
    def _spreads(self) -> Array:
        return np.array(self.spread, np.float32)[None, :, None]

    def errors(self, answers: Any, y: Any) -> Any:
        """See `Goal`."""
        return (((answers - y) / self._spreads) ** 2).mean((1, 2))

    def naive(self, x: Array, repeated: int) -> Array:
        """The last `repeated` values of x again and again."""
        at = np.arange(self.horizon) % repeated - repeated
        return np.asarray(x[:, :, 0, at])

    def scale(self, part: Part) -> float:
        """See `Goal`."""
        return float(self.errors(self.naive(part[0], self.repeated), part[1]).mean())

    def facts(self, value: float, part: Part) -> dict[str, float]:
        """See `Goal`."""
        return {"relative_rmse": sqrt(1 - value), "rmse_in_spreads": sqrt((1 - value) * self.scale(part))}


def told(figure: str, value: float) -> str:
    """A figure in words: "98.10%", "R² 0.512", "RMSE 0.843 of naive"."""
    if figure == Values.figure:
        return f"R² {value:.4f}"
    return f"{value:.2%}" if figure == Classes.figure else f"RMSE {sqrt(max(1 - value, 0)):.4f} of naive"
