"""Quantisers, and operators on quantised integers."""

from __future__ import annotations

from functools import partial

from lite_runtime.operators.record import CLAMP, LAYOUT, PADDING, Operator

__all__ = ["RECORDS"]

_op = partial(Operator, domain="msedge", reference="quantize")

RECORDS: tuple[Operator, ...] = (
    _op(
        "ConvInteger",
        since=10,
        inputs=(2, 4),
        attrs=f"{PADDING} dilations:I group:i kernel_shape:I pads:I strides:I",
        domain="",
        reference="qlinear",
    ),
    _op(
        "DequantizeLinear",
        since=10,
        inputs=(2, 3),
        attrs="axis:i block_size:i output_dtype:i",
        traits=("scaled", "exact", "wide"),
        domain="",
        settings=(1,),
    ),
    _op(
        "DynamicQuantizeLinear",
        since=11,
        outputs=(3, 3),
        attrs="dtype:s(uint8|int8) kept:i scheme:s(|SYMMETRIC|ASYMMETRIC)",
        traits=("wide",),
        domain="",
    ),
    _op(
        "FixedPointDiv",
        since=1,
        inputs=(2, 2),
        attrs="multiplier:i! shift:i!",
        traits=("elementwise", "broadcasts", "exact", "flat"),
        types=("int32",),
        reference="fixed_point",
    ),
    _op(
        "FixedPointRsqrt",
        since=1,
        attrs="part:s!(MULTIPLIER|SHIFT)",
        traits=("elementwise", "exact", "flat"),
        types=("int32",),
        reference="fixed_point",
    ),
    _op(
        "FixedPointSigmoid",
        since=1,
        attrs="integer_bits:i=3 interpolated:i",
        traits=("elementwise", "exact", "flat"),
        reference="fixed_point",
    ),
    _op(
        "FixedPointTanh",
        since=1,
        attrs="integer_bits:i=3 interpolated:i",
        traits=("elementwise", "exact", "flat"),
        reference="fixed_point",
    ),
    _op("InterpolatedTable", since=1, inputs=(2, 2), traits=("idle",), reference="fixed_point"),
    _op("LookupTable", since=1, inputs=(2, 2), traits=("idle",)),
    _op("MatMulInteger", since=10, inputs=(2, 4), domain="", reference="qlinear"),
    _op(
        "QLinearAdd",
        since=1,
        inputs=(8, 8),
        attrs=CLAMP,
        traits=("scaled", "exact", "quantised"),
        reference="qelementwise",
    ),
    _op(
        "QLinearAveragePool",
        since=1,
        inputs=(5, 5),
        attrs=f"{PADDING} ceil_mode:i count_include_pad:i dilations:I kernel_shape:I! {LAYOUT} pads:I strides:I",
        traits=("quantised",),
        reference="qpool",
    ),
    _op(
        "QLinearConv",
        since=10,
        inputs=(6, 9),
        attrs=(
            f"{CLAMP} {PADDING} dilations:I group:i kernel_shape:I {LAYOUT} pads:I "
            "rounding:s(|FIXED|TWICE|DOUBLE|LANES|REAL) strides:I"
        ),
        traits=("accumulates", "quantised"),
        domain="",
        reference="qlinear",
    ),
    _op(
        "QLinearConvTranspose",
        since=1,
        inputs=(6, 9),
        attrs=(
            f"{CLAMP} {PADDING} dilations:I group:i kernel_shape:I {LAYOUT} output_padding:I output_shape:I pads:I "
            "strides:I"
        ),
        traits=("accumulates", "quantised"),
        reference="qconv_transpose",
    ),
    _op("QLinearGlobalAveragePool", since=1, inputs=(5, 5), attrs=LAYOUT, traits=("quantised",), reference="qpool"),
    _op(
        "QLinearMatMul",
        since=10,
        inputs=(6, 9),
        attrs=f"{CLAMP} rounding:s(|FIXED|TWICE|DOUBLE|REAL) transB:i",
        traits=("accumulates", "quantised"),
        domain="",
        reference="qlinear",
    ),
    _op(
        "QLinearMul",
        since=1,
        inputs=(8, 8),
        attrs=CLAMP,
        traits=("scaled", "exact", "quantised"),
        reference="qelementwise",
    ),
    _op(
        "QLinearReduceMean",
        since=1,
        inputs=(5, 6),
        attrs="keepdims:i noop_with_empty_axes:i",
        traits=("quantised",),
        reference="qpool",
    ),
    _op(
        "QLinearResize",
        since=1,
        inputs=(1, 4),
        attrs=(
            "antialias:i axes:I coordinate_transformation_mode:s cubic_coeff_a:f exclude_outside:i "
            "extrapolation_value:f keep_aspect_ratio_policy:s mode:s nearest_mode:s"
        ),
        reference="qresize",
    ),
    _op(
        "QLinearSoftmax",
        since=1,
        inputs=(5, 5),
        attrs="axis:i rounding:s(|ORDERED)",
        traits=("quantised",),
        reference="qsoftmax",
    ),
    _op(
        "QLinearSub",
        since=1,
        inputs=(8, 8),
        attrs=CLAMP,
        traits=("scaled", "exact", "quantised"),
        reference="qelementwise",
    ),
    _op(
        "QuantizeLinear",
        since=10,
        inputs=(2, 3),
        attrs="axis:i block_size:i output_dtype:i precision:i saturate:i",
        traits=("scaled", "exact", "wide"),
        domain="",
        settings=(1,),
    ),
    _op(
        "Rescale",
        since=1,
        inputs=(4, 5),
        attrs="rounding:s!(UP|AWAY|DOUBLE|TWICE)",
        traits=("elementwise", "broadcasts", "exact", "flat"),
        reference="fixed_point",
    ),
)
