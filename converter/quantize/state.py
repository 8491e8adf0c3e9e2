"""What the steps of the quantiser hand to one another."""

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

__all__ = ["WAYS", "State", "Step", "Way"]


class Way(NamedTuple):
    """A method of `calibrate`, and a factor on every range it chooses: new data exceeds what was seen."""

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
)
"""What method "auto" tries; the first where trials tell no difference."""


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
    """Of every tensor the plan quantises and everything else observed, by name."""
    way: Way = WAYS[0]
    """How ranges are chosen where the options leave it open."""
    params: dict[ir.Value, Params] = field(default_factory=dict)
    """Of every tensor the plan quantises."""
    weights: dict[str, Quantized] = field(default_factory=dict)
    """Rounded weights by the name of their initialiser; what a step finds here, it keeps."""
    reference: ir.Model | None = None
    """The float model, equalised, as it was before integers were written; set where a later step compares with it."""


class Step(NamedTuple):
    """One step: `run` edits the state where `applies` to the options."""

    name: str
    applies: Callable[[Options], bool]
    run: Callable[[State], None]
