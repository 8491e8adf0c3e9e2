"""Losses and optimisers defined by ONNX."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import MANY, Operator

__all__ = ["RECORDS"]

_op = partial(Operator, domain="ai.onnx.preview.training", reference="losses")

RECORDS: tuple[Operator, ...] = (
    _op("Adagrad", since=1, inputs=(3, MANY), outputs=(1, MANY), attrs="decay_factor:f epsilon:f norm_coefficient:f"),
    _op(
        "Adam",
        since=1,
        inputs=(3, MANY),
        outputs=(1, MANY),
        attrs="alpha:f beta:f epsilon:f norm_coefficient:f norm_coefficient_post:f",
    ),
    _op("Momentum", since=1, inputs=(3, MANY), outputs=(1, MANY), attrs="alpha:f! beta:f! mode:s! norm_coefficient:f!"),
    _op(
        "NegativeLogLikelihoodLoss",
        since=12,
        inputs=(2, 3),
        attrs="ignore_index:i reduction:s(none|sum|mean)",
        traits=("wide",),
        domain="",
    ),
    _op(
        "SoftmaxCrossEntropyLoss",
        since=12,
        inputs=(2, 3),
        outputs=(1, 2),
        attrs="ignore_index:i reduction:s(none|sum|mean)",
        traits=("wide",),
        domain="",
    ),
)
