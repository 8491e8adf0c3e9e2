"""Reductions over axes, cumulative sums and products, and pools."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import LAYOUT, PADDING, Operator

__all__ = ["RECORDS"]

_op = partial(Operator, reference="reduce")

RECORDS: tuple[Operator, ...] = (
    _op("ArgMax", since=1, attrs="axis:i keepdims:i select_last_index:i", traits=("flat",)),
    _op("ArgMin", since=1, attrs="axis:i keepdims:i select_last_index:i", traits=("flat",)),
    _op(
        "AveragePool",
        since=1,
        attrs=f"{PADDING} ceil_mode:i count_include_pad:i dilations:I kernel_shape:I! {LAYOUT} pads:I strides:I",
        reference="pooling",
    ),
    _op("CumProd", since=26, inputs=(2, 2), attrs="exclusive:i reverse:i"),
    _op("CumSum", since=11, inputs=(2, 2), attrs="exclusive:i reverse:i", traits=("wide",), settings=(1,)),
    _op("GlobalAveragePool", since=1, attrs=LAYOUT, reference="pooling"),
    _op("GlobalLpPool", since=1, attrs="p:i", reference="pooling"),
    _op("GlobalMaxPool", since=1, attrs=LAYOUT, traits=("selects",), reference="pooling"),
    _op(
        "LpPool",
        since=1,
        attrs=f"{PADDING} ceil_mode:i dilations:I kernel_shape:I! {LAYOUT} p:i pads:I strides:I",
        reference="pooling",
    ),
    _op(
        "MaxPool",
        since=1,
        outputs=(1, 2),
        attrs=f"{PADDING} ceil_mode:i dilations:I kernel_shape:I! {LAYOUT} pads:I storage_order:i strides:I",
        traits=("selects",),
        reference="pooling",
    ),
    _op("MaxUnpool", since=9, inputs=(2, 3), attrs="kernel_shape:I! pads:I strides:I", reference="pooling"),
    _op("ReduceL1", since=1, inputs=(1, 2), attrs="keepdims:i noop_with_empty_axes:i", traits=("reduction", "wide")),
    _op("ReduceL2", since=1, inputs=(1, 2), attrs="keepdims:i noop_with_empty_axes:i", traits=("reduction", "wide")),
    _op(
        "ReduceLogSum",
        since=1,
        inputs=(1, 2),
        attrs="keepdims:i noop_with_empty_axes:i",
        traits=("reduction", "wide"),
    ),
    _op(
        "ReduceLogSumExp",
        since=1,
        inputs=(1, 2),
        attrs="keepdims:i noop_with_empty_axes:i",
        traits=("reduction", "wide"),
    ),
    _op(
        "ReduceMax",
        since=1,
        inputs=(1, 2),
        attrs="keepdims:i noop_with_empty_axes:i",
        traits=("selects", "reduction"),
    ),
    _op("ReduceMean", since=1, inputs=(1, 2), attrs="keepdims:i noop_with_empty_axes:i", traits=("reduction", "wide")),
    _op(
        "ReduceMin",
        since=1,
        inputs=(1, 2),
        attrs="keepdims:i noop_with_empty_axes:i",
        traits=("selects", "reduction"),
    ),
    _op("ReduceProd", since=1, inputs=(1, 2), attrs="keepdims:i noop_with_empty_axes:i", traits=("reduction", "wide")),
    _op("ReduceSum", since=1, inputs=(1, 2), attrs="keepdims:i noop_with_empty_axes:i", traits=("reduction", "wide")),
    _op(
        "ReduceSumSquare",
        since=1,
        inputs=(1, 2),
        attrs="keepdims:i noop_with_empty_axes:i",
        traits=("reduction", "wide"),
    ),
)
