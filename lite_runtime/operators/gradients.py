"""Gradients of operators whose gradient cannot be expressed with ONNX's operators, or not efficiently."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import LAYOUT, Operator

__all__ = ["RECORDS"]

_op = partial(Operator, domain="msedge", reference="gradients")

RECORDS: tuple[Operator, ...] = (
    _op(
        "AveragePoolGrad",
        since=1,
        inputs=(2, 2),
        attrs=f"ceil_mode:i count_include_pad:i dilations:I kernel_shape:I! {LAYOUT} pads:I strides:I",
    ),
    _op("BatchNormalizationGrad", since=1, inputs=(5, 5), outputs=(1, 3), attrs=LAYOUT),
    _op(
        "ConvWeightGrad",
        since=1,
        inputs=(2, 2),
        attrs=f"dilations:I group:i kernel_shape:I! {LAYOUT} pads:I strides:I",
    ),
    _op(
        "GRUGrad",
        since=1,
        inputs=(4, 9),
        outputs=(1, 5),
        attrs="direction:s(forward|reverse|bidirectional) hidden_size:i layout:i linear_before_reset:i",
    ),
    _op(
        "LSTMGrad",
        since=1,
        inputs=(4, 11),
        outputs=(1, 6),
        attrs="direction:s(forward|reverse|bidirectional) hidden_size:i layout:i",
    ),
    _op("LayerNormalizationGrad", since=1, inputs=(5, 5), outputs=(1, 3), attrs="axis:i"),
    _op(
        "MaxPoolGrad",
        since=1,
        inputs=(2, 2),
        attrs=f"ceil_mode:i dilations:I kernel_shape:I! {LAYOUT} pads:I strides:I",
    ),
)
