"""The state that the steps of the quantiser share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import onnx_ir as ir

from converter.quantize.calibration.calibrate import Params
from converter.quantize.calibration.data import Samples
from converter.quantize.calibration.observe import Statistics
from converter.quantize.options import Method, Options
from converter.quantize.record import Record
from converter.quantize.rounding.weights import Quantized
from converter.quantize.schemes import Plan

__all__ = ["WAYS", "Progress", "State", "Step", "Way"]


Progress = Callable[[str, int, int], None]
"""(current activity, steps done, total steps)"""


class Way(NamedTuple):
    """A method of `calibrate`, and a factor on every range it chooses, since new data may exceed the observed range."""

    method: Method
    margin: float = 1.0


WAYS: tuple[Way, ...] = (
    Way("mse"),
    Way("mse", 1.1),
    Way("mse", 1.2),
    Way("percentile"),
    Way("percentile", 1.1),
    Way("minmax"),
    Way("minmax", 1.1),
    Way("entropy"),
    Way("entropy", 1.1),
)
"""The candidates of method "auto"; the first is used if trials show no difference."""


@dataclass
class State:
    """A quantisation under way."""

    model: ir.Model
    """Edited in place; float until the last steps."""
    options: Options
    samples: Samples | None
    record: Record
    plan: Plan = field(default_factory=Plan)
    statistics: dict[str, Statistics] = field(default_factory=dict)
    """Statistics of every tensor that the plan quantises or that is otherwise observed, by name."""
    way: Way = WAYS[0]
    """How ranges are chosen if the options leave it open."""
    ways: dict[str, Way] = field(default_factory=dict)
    """The tensors, by name, whose ranges are chosen in another way; tensors that share parameters under the first."""
    params: dict[ir.Value, Params] = field(default_factory=dict)
    """Parameters of every tensor that the plan quantises."""
    weights: dict[str, Quantized] = field(default_factory=dict)
    """Rounded weights by the name of their initialiser; steps keep existing entries."""
    reference: ir.Model | None = None
    """The equalised float model before integers were written; set if a later step compares with it."""


class Step(NamedTuple):
    """One step: `run` edits the state if `applies` is true for the options."""

    name: str
    applies: Callable[[Options], bool]
    run: Callable[[State], None]
