"""Random numbers and dropout."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="random")

RECORDS: tuple[Operator, ...] = (
    _op("Bernoulli", since=15, attrs="dtype:i seed:f", traits=("flat", "random")),
    _op("Dropout", since=1, inputs=(1, 3), outputs=(1, 2), attrs="seed:i", traits=("idle",), settings=(1,)),
    _op("Multinomial", since=7, attrs="dtype:i sample_size:i seed:f", traits=("flat", "random")),
    _op("RandomNormal", since=1, inputs=(0, 0), attrs="dtype:i mean:f scale:f seed:f shape:I!", traits=("random",)),
    _op("RandomNormalLike", since=1, attrs="dtype:i mean:f scale:f seed:f", traits=("flat", "random")),
    _op("RandomUniform", since=1, inputs=(0, 0), attrs="dtype:i high:f low:f seed:f shape:I!", traits=("random",)),
    _op("RandomUniformLike", since=1, attrs="dtype:i high:f low:f seed:f", traits=("flat", "random")),
)
